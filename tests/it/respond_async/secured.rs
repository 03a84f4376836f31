//! Late calls between sidecars that prove their names.

use super::{Asked, fetch};
use crate::support::reply::Reply;
use crate::tls::house::{House, client_of};

#[tokio::test]
async fn a_reply_is_for_the_name_that_its_caller_proved() {
    let house = House::start().await;
    let asked = Asked::of(&house.caller, "t-secured");
    let location = asked.accepted(&Reply::to(asked.wrapped()).await);
    let reply = fetch(&house.caller, &location).await;
    assert_eq!(reply.status, 200, "{reply:?}");

    let url = format!("{}{location}", house.callee.secure_inbound_url());
    // What the header says counts for nothing.
    for (name, status) in [("billing", 404), ("payment", 200)] {
        let request = client_of(&house.ca, name).get(&url);
        let fetched = Reply::to(request.header("hermes-application", "payment")).await;
        assert_eq!(fetched.status, status, "{name}: {fetched:?}");
        if status == 200 {
            assert_eq!(fetched.body, reply.body);
        }
    }
}
