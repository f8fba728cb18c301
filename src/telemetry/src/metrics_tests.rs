//! The metrics that are exported from the start.

use super::*;

#[test]
fn what_design_names_is_there_before_its_first_event() {
    install().unwrap();
    mqtt_connected("b:1883", false);
    let text = render();
    for series in [
        "hourbucket_journal_sync_seconds_count",
        "hourbucket_journal_sync_seconds_bucket{le=\"+Inf\"}",
        "hourbucket_store_statements_total{kind=\"insert\"}",
        "hourbucket_store_write_seconds_count{kind=\"measurement\"}",
        "hourbucket_store_errors_total{kind=\"no_primary\"}",
        "hourbucket_mqtt_reconnects_total{broker=\"b:1883\"}",
        "hourbucket_mqtt_left_out_total{broker=\"b:1883\"}",
        "hourbucket_sparkplug_rebirths_total{broker=\"b:1883\"}",
        "hourbucket_readings_stored_total{mode=\"bucket\"}",
        "hourbucket_readings_stored_total{mode=\"timeseries\"}",
        "hourbucket_registry_changes_total",
        "hourbucket_readings_rejected_total{source=\"store\",reason=\"quarantined\"}",
        "hourbucket_readings_rejected_total{source=\"store\",reason=\"readings_removed\"}",
    ] {
        assert!(
            text.lines()
                .any(|line| line.starts_with(&format!("{series} "))),
            "{series} in {text}"
        );
    }
}
