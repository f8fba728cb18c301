//! Bodies of instances that forward.

use decode::forwarded::{Encoder, MEDIA_TYPE};
use model::{BatchBuilder, ValueRef};

use super::rig::{Request, Rig, decoding, post};

fn body() -> Vec<u8> {
    let mut batch = BatchBuilder::new(8);
    batch.begin();
    batch.value("n", ValueRef::Int(7)).unwrap();
    batch.commit("s", 1_700_000_000_000, false, &[]).unwrap();
    let batch = batch.finish();
    let mut encoder = Encoder::new();
    encoder.begin_batch();
    for (_, reading) in batch.iter() {
        encoder.push(&batch, &reading, 1);
    }
    encoder.finish()
}

fn forwarded() -> Request {
    post(body()).header("content-type", MEDIA_TYPE)
}

#[tokio::test]
async fn they_are_taken_as_they_were_received() {
    let mut rig = Rig::with(|_| {}, decoding()).await;
    let (answer, readings) = rig.delivered(forwarded()).await;
    assert_eq!((answer.status, readings.len()), (200, 1));
    assert_eq!(readings[0].ts_ms, 1_700_000_000_000);
}

#[tokio::test]
async fn an_instance_that_sends_out_of_order_takes_none() {
    let decoding = config::Decoding {
        takes_forwarded: false,
        ..decoding()
    };
    let mut rig = Rig::with(|_| {}, decoding).await;
    let answer = forwarded().send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (409, "newest_first")
    );
    rig.nothing_came();
}
