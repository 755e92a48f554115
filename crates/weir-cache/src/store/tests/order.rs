//! Fetches of one key that end in another order than that in which they began.

use super::*;

#[test]
fn what_came_earlier_does_not_take_the_place_of_what_came_later() {
    let store = Store::new(1 << 20, 7);
    let at = |second: u64, text: &str| {
        let (head, buffer) = response("HTTP/1.1 200 OK\r\ncache-control: max-age=600\r\n");
        let storing =
            judge_response(&facts(""), &head, &buffer, &Rules::default(), exchange_at(second)).unwrap();
        storing.object(&head, &buffer, Body::from(Bytes::copy_from_slice(text.as_bytes()))).unwrap()
    };
    let insert = |object: Object| {
        let asking = asking(&store, "/", "");
        store.insert(&asking.key, &asking.head, &asking.buffer, object, store.purge_sequence()).err()
    };
    assert_eq!(insert(at(1002, "newer")), None);
    assert_eq!(insert(at(1001, "older")), Some(Refused::Outdated));
    assert_eq!(insert(at(1003, "newest")), None);
}
