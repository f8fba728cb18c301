//! Connections that come, wait, are cut, and fail to authenticate, with a clock that the test sets.

use super::*;
use config::{Network, ProxyHeader};
use testkit::SetClock;

struct Rig {
    open: OpenConnections,
    clock: Arc<SetClock>,
}

impl Rig {
    fn new(max: usize, per_address_max: usize) -> Rig {
        let pause = Duration::from_secs(30);
        let settings = Connections {
            max,
            per_address_max,
            failed_auth_max: 3,
            failed_auth_pause: pause,
        };
        let clock = Arc::new(SetClock::new(1));
        let trusted = [Network::parse("198.51.100.0/24").unwrap()].into();
        let proxies = Proxies {
            trusted,
            header: ProxyHeader::ProxyV2,
        };
        Rig {
            open: OpenConnections::new(settings, proxies, clock.clone()),
            clock,
        }
    }

    /// A connection from host `n`, a millisecond after the one before it.
    fn enter(&self, n: u8) -> Result<Place, Refusal> {
        self.clock.advance(1);
        self.open.enter(SocketAddr::from(([192, 0, 2, n], 1000)))
    }

    fn rest(&self, place: &Place) {
        self.clock.advance(1);
        place.phase().rest(self.open.now_ms());
    }

    fn placed(&self) -> usize {
        self.open.lock(|state| state.placed)
    }
}

fn is_cut(place: &Place) -> bool {
    place.phase().now() == Doing::Cut
}

#[test]
fn the_longest_idle_connection_makes_room_and_one_with_a_request_never() {
    let rig = Rig::new(3, 3);
    let [a, b, c] = [1, 2, 3].map(|n| rig.enter(n).unwrap());
    a.begin();
    rig.rest(&a);
    b.begin();
    // c has waited for longest, then a.
    let d = rig.enter(4).unwrap();
    assert!(is_cut(&c) && !is_cut(&a) && !is_cut(&b));
    drop(c);
    d.begin();
    let e = rig.enter(5).unwrap();
    assert!(is_cut(&a) && rig.placed() == 3);
    e.begin();
    assert_eq!(rig.enter(6).err(), Some(Refusal::Limit));
    rig.rest(&b);
    let f = rig.enter(6).unwrap();
    assert!(is_cut(&b));
    drop((a, b, d, e, f));
    assert_eq!(
        rig.open.lock(|state| (state.placed, state.list.len())),
        (0, 0)
    );
    assert!(rig.enter(1).is_ok());
}

#[test]
fn a_request_that_was_complete_before_the_cut_keeps_its_place() {
    let rig = Rig::new(1, 1);
    let a = rig.enter(1).unwrap();
    let b = rig.enter(2).unwrap();
    assert!(is_cut(&a));
    a.begin();
    assert_eq!((a.phase().now(), rig.placed()), (Doing::Busy, 2));
    drop(a);
    assert_eq!(rig.placed(), 1);
    drop(b);
    assert_eq!(rig.placed(), 0);
}

#[test]
fn an_address_makes_room_among_its_own() {
    let rig = Rig::new(8, 0);
    let others: Vec<Place> = (0..3).map(|n| rig.enter(100 + n).unwrap()).collect();
    let a = rig.enter(1).unwrap();
    let b = rig.enter(1).unwrap();
    a.begin();
    let c = rig.enter(1).unwrap();
    assert!(is_cut(&b) && !others.iter().any(is_cut));
    c.begin();
    assert_eq!(rig.enter(1).err(), Some(Refusal::AddressLimit));
    assert!(rig.enter(2).is_ok());
}

#[test]
fn a_trusted_proxy_has_no_limit_but_counts_for_the_port() {
    let rig = Rig::new(8, 2);
    let of_proxy = |n: u8| rig.open.enter(SocketAddr::from(([198, 51, 100, n], 1000)));
    let mut places: Vec<Place> = (0..6).map(|_| of_proxy(1).unwrap()).collect();
    assert!(
        (0..100).all(|_| places[0].failed().is_none()),
        "it is not paused"
    );
    places.extend([rig.enter(1).unwrap(), rig.enter(1).unwrap()]);
    places.iter().for_each(Place::begin);
    assert_eq!(rig.enter(1).err(), Some(Refusal::AddressLimit));
    assert_eq!((of_proxy(2).err(), rig.placed()), (Some(Refusal::Limit), 8));
    // Nothing of it stays when its connections end, even if it is no longer trusted.
    let Connections { max, .. } = rig.open.lock(|state| state.settings);
    let pause = Duration::from_secs(30);
    let settings = Connections {
        max,
        per_address_max: 2,
        failed_auth_max: 3,
        failed_auth_pause: pause,
    };
    rig.open.put(
        settings,
        Proxies {
            trusted: [].into(),
            header: ProxyHeader::ProxyV2,
        },
    );
    drop(places);
    assert_eq!(rig.placed(), 0);
    let a = of_proxy(1).unwrap();
    let b = of_proxy(1).unwrap();
    a.begin();
    b.begin();
    assert_eq!(of_proxy(1).err(), Some(Refusal::AddressLimit));
}

#[test]
fn failures_behind_a_proxy_pause_the_address_that_it_names() {
    let rig = Rig::new(100, 100);
    let ip: IpAddr = "192.0.2.9".parse().unwrap();
    assert!((0..3).all(|_| rig.open.failed_behind_proxy(ip).is_none()));
    assert_eq!(
        rig.open.failed_behind_proxy(ip).map(|pause| pause.is_new),
        Some(true)
    );
    assert_eq!(
        rig.open.failed_behind_proxy(ip).map(|pause| pause.is_new),
        Some(false)
    );
    assert_eq!(
        rig.open.failed_behind_proxy("192.0.2.8".parse().unwrap()),
        None,
        "only this one"
    );
    // Its own connection meets the same pause.
    assert_eq!(
        rig.enter(9).unwrap().failed().map(|pause| pause.is_new),
        Some(false)
    );
}

#[test]
fn a_full_port_is_not_searched_for_each_connection() {
    let n = 2 * SEARCHED_FREELY;
    let rig = Rig::new(n, n);
    let places: Vec<Place> = (0..n).map(|_| rig.enter(1).unwrap()).collect();
    let searched = || rig.open.lock(|state| state.idle.searched_ms);
    let mut new = vec![rig.enter(2).unwrap()];
    let first = searched();
    new.extend((1..n / FOUND_PART).map(|_| rig.enter(2).unwrap()));
    assert_eq!(searched(), first);
    assert!(
        places[..n / FOUND_PART].iter().all(is_cut),
        "the longest idle of all"
    );
    assert!(!places[n / FOUND_PART..].iter().any(is_cut));
    places
        .iter()
        .chain(&new)
        .filter(|place| !is_cut(place))
        .for_each(Place::begin);
    assert_eq!(rig.enter(3).err(), Some(Refusal::Limit));
    let last = searched();
    assert!((1..SEARCH_EVERY_MS).all(|_| rig.enter(3).is_err()) && searched() == last);
    rig.rest(&new[0]);
    rig.clock.advance(SEARCH_EVERY_MS);
    assert!(rig.enter(3).is_ok());
}

#[test]
fn a_paused_address_makes_room_among_those_that_had_time_to_show_a_token() {
    let rig = Rig::new(100, 100);
    let device = rig.enter(1).unwrap();
    device.proved();
    device.begin();
    rig.rest(&device);
    let other = rig.enter(2).unwrap();
    let silent: Vec<Place> = (0..8).map(|_| rig.enter(1).unwrap()).collect();
    assert_eq!(
        (0..4).filter_map(|_| silent[0].failed()).count(),
        1,
        "it is paused"
    );
    assert_eq!(rig.enter(1).err(), Some(Refusal::Paused), "all are new");
    rig.clock.advance(PROOF_MS);
    let new: Vec<Place> = (0..8).map(|_| rig.enter(1).unwrap()).collect();
    assert!(silent.iter().all(is_cut) && !new.iter().any(is_cut));
    assert!(!is_cut(&device) && !is_cut(&other));
    assert_eq!(rig.enter(1).err(), Some(Refusal::Paused), "all are new");
    new.iter().for_each(Place::begin);
    rig.clock.advance(PROOF_MS);
    assert_eq!(
        rig.enter(1).err(),
        Some(Refusal::Paused),
        "a request in progress is never cut"
    );
}

#[test]
fn failures_pause_the_address_and_a_connection_that_was_cut_leaves_no_trace() {
    let rig = Rig::new(100, 100);
    let a = rig.enter(1).unwrap();
    assert!((0..3).all(|_| a.failed().is_none()));
    assert_eq!(
        a.failed(),
        Some(Pause {
            left: Duration::from_secs(30),
            is_new: true
        })
    );
    let mut more: Vec<Place> = std::iter::from_fn(|| rig.enter(1).ok()).collect();
    assert_eq!((more.len(), rig.enter(1).err()), (7, Some(Refusal::Paused)));
    more[0].proved();
    more[0].proved();
    more.push(rig.enter(1).unwrap());
    assert_eq!(rig.enter(1).err(), Some(Refusal::Paused));
    rig.open.lock(|state| {
        let of = Candidates::All;
        assert!(state.cut_one(of, 1000) && state.cut_one(of, 1000));
    });
    // The proven one was cut, too; it cannot prove itself once more.
    more.iter().for_each(Place::proved);
    drop((a, more));
    assert_eq!(
        std::iter::from_fn(|| rig.enter(1).ok().map(std::mem::forget)).count(),
        8
    );
}
