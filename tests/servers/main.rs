//! Tests of the service as a process, with a real MongoDB and a real mosquitto.

#[path = "../support/mod.rs"]
mod support;

mod chaos;
mod connections;
mod convert;
mod dead_letters;
mod enrich;
mod exactly_once_clocks;
mod guides;
mod influx;
mod latest;
mod memory;
mod monitoring;
mod mqtt_direct_hostile_service;
mod mqtt_direct_service;
mod mqtt_share;
mod no_stall;
mod overflow;
mod page;
mod quarantine;
mod quota;
mod read_api;
mod read_schema;
mod reconcile;
mod reload;
mod replica_set;
mod scale;
mod service;
mod service_manager;
mod storage;
mod store_contract;
mod store_schema;
mod store_series;
