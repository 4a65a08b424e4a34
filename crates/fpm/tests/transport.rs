//! Publisher and subscriber over real sockets, with everything that befalls them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs::File;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rollscope_fpm::{
    Account, Accounts, Arrival, Base, BindError, Endpoint, Heard, Message, Origin, Pass, Publisher,
    QUEUE_RECORDS, ScheduledRequests, Subscription, Subscriptions, What,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::timeout;

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a SUB socket sends first: greeting, READY, subscription to everything.
const SUBSCRIBER: &[u8] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\x00\x01\x01";
/// What a PUB socket sends first.
const PUBLISHER: &[u8] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

struct Listening {
    heard: Receiver<Heard<u32>>,
    _subscriptions: Vec<Subscription<u32>>,
}

impl Listening {
    fn to(endpoints: &[Endpoint]) -> Self {
        let (tell, heard) = mpsc::channel(64);
        let start = |(index, endpoint): (usize, &Endpoint)| {
            Subscription::start(endpoint.clone(), index as u32, tell.clone())
        };
        Self { _subscriptions: endpoints.iter().enumerate().map(start).collect(), heard }
    }

    async fn next(&mut self) -> (u32, What) {
        let heard = timeout(PATIENCE, self.heard.recv()).await.unwrap().unwrap();
        (heard.from, heard.what)
    }

    /// The next message; what else is heard, as of tries to connect, is passed over for so long.
    async fn message(&mut self) -> (u32, Message) {
        let message = async {
            loop {
                if let (from, What::Message(message)) = self.next().await {
                    return (from, message);
                }
            }
        };
        timeout(PATIENCE, message).await.unwrap()
    }

    /// Waits for as many connections.
    async fn connected(&mut self, mut count: usize) {
        while count > 0 {
            if let (_, What::Connected) = self.next().await {
                count -= 1;
            }
        }
    }
}

fn ipc(folder: &TempDir, name: &str) -> Endpoint {
    Endpoint::Ipc(folder.path().join(name))
}

fn pass(tokens: u64) -> Pass {
    let scheduled = ScheduledRequests { sum_prefill_tokens: tokens, ..ScheduledRequests::default() };
    Pass { wall_time: 0.25, scheduled, ..Pass::default() }
}

/// For loops that go on until something is heard.
struct Patience(Instant);

impl Patience {
    fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    #[track_caller]
    fn check(&self, what: &str) {
        assert!(Instant::now() < self.0, "waited in vain: {what}");
    }
}

/// The first message comes when the publisher knows of the subscription, which it is not told.
async fn meet(publisher: &mut Publisher, listening: &mut Listening) -> u64 {
    let patience = Patience::new();
    loop {
        patience.check("the first message");
        publisher.publish(pass(0));
        if let Ok(Some(heard)) = timeout(Duration::from_millis(20), listening.heard.recv()).await
            && let What::Message(message) = heard.what
        {
            return message.sequence;
        }
    }
}

#[tokio::test]
async fn what_is_published_is_heard_over_both_transports() {
    let folder = TempDir::new().unwrap();
    for endpoint in [ipc(&folder, "a.0"), "tcp://127.0.0.1:0".parse().unwrap()] {
        let mut publisher = Publisher::bind(&endpoint, "worker", 3).unwrap();
        let mut listening = Listening::to(&[publisher.endpoint().clone()]);
        let mut last = meet(&mut publisher, &mut listening).await;
        let number = publisher.publish(pass(7));
        let patience = Patience::new();
        loop {
            patience.check("the last message");
            let (_, message) = listening.message().await;
            assert_eq!(message.sequence, last + 1);
            last = message.sequence;
            let metrics = message.metrics.unwrap();
            assert_eq!((&*metrics.worker_id, metrics.dp_rank, metrics.counter_id), ("worker", 3, last));
            if last == number {
                assert_eq!((metrics.wall_time, metrics.scheduled), (0.25, pass(7).scheduled));
                break;
            }
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the socket's file is left");
}

#[tokio::test]
async fn a_scheduler_at_rest_sends_heartbeats_and_one_at_work_none() {
    let folder = TempDir::new().unwrap();
    let mut publisher = Publisher::bind(&ipc(&folder, "a.0"), "", 0).unwrap();
    let mut listening = Listening::to(&[publisher.endpoint().clone()]);
    let (_, first) = listening.message().await;
    assert!(first.metrics.unwrap().is_heartbeat());
    let before = publisher.publish(pass(0));
    publisher.work();
    // However long it works: at rest a heartbeat would come in this time.
    std::thread::sleep(Duration::from_millis(1500));
    let number = publisher.publish(pass(1));
    publisher.rest();
    let patience = Patience::new();
    while listening.message().await.1.sequence < before {
        patience.check("the pass before");
    }
    let (_, next) = listening.message().await;
    let is_pass = next.metrics.unwrap().scheduled == pass(1).scheduled;
    assert_eq!((next.sequence, is_pass), (number, true), "something came between two passes");
    let (_, after) = listening.message().await;
    assert_eq!((after.sequence, after.metrics.unwrap().is_heartbeat()), (number + 1, true));
}

#[tokio::test]
async fn ranks_are_told_apart() {
    let folder = TempDir::new().unwrap();
    let base: Base = ipc(&folder, "base").to_string().parse().unwrap();
    let bind = |base: &Base| {
        let [first, second] = [0, 1].map(|rank| Publisher::bind(&base.of_rank(rank).unwrap(), "w", rank));
        Ok::<_, BindError>([first?, second?])
    };
    hear_both(bind(&base).unwrap()).await;
    // Of a port that is free, the next one need not be.
    let patience = Patience::new();
    let publishers = loop {
        patience.check("two ports in a row");
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let base: Base = format!("tcp://127.0.0.1:{}", port.min(u16::MAX - 1)).parse().unwrap();
        if let Ok(publishers) = bind(&base) {
            break publishers;
        }
    };
    let ports = publishers.each_ref().map(|publisher| match publisher.endpoint() {
        Endpoint::Tcp { port, .. } => *port,
        Endpoint::Ipc(_) => unreachable!(),
    });
    assert_eq!(ports[1], ports[0] + 1);
    hear_both(publishers).await;
}

/// Hears of two ranks, each at its own endpoint, until both have sent enough.
async fn hear_both(mut publishers: [Publisher; 2]) {
    let mut listening = Listening::to(&publishers.each_ref().map(|publisher| publisher.endpoint().clone()));
    let mut accounts = [Account::default(), Account::default()];
    let patience = Patience::new();
    while accounts.iter().any(|account| account.received < 20) {
        patience.check("twenty of each");
        for publisher in &mut publishers {
            publisher.publish(pass(1));
        }
        while let Ok(Some(heard)) = timeout(Duration::from_millis(5), listening.heard.recv()).await {
            if let What::Message(message) = heard.what {
                assert_eq!(message.metrics.unwrap().dp_rank, heard.from);
                accounts[heard.from as usize].take(message.sequence);
            }
        }
    }
    assert!(accounts.iter().all(|account| account.lost == 0 && account.restarts == 0), "{accounts:?}");
}

#[tokio::test]
async fn a_restart_is_told_from_a_gap() {
    let folder = TempDir::new().unwrap();
    let endpoint = ipc(&folder, "a.0");
    let mut listening = Listening::to(std::slice::from_ref(&endpoint));
    // It is looked for before it is there.
    assert!(matches!(listening.next().await, (0, What::Lost(_))));
    let mut account = Account::default();
    let mut publisher = Publisher::bind(&endpoint, "", 0).unwrap();
    for _ in 0..10 {
        publisher.publish(pass(1));
    }
    account.take(meet(&mut publisher, &mut listening).await);
    drop(publisher);
    let patience = Patience::new();
    loop {
        patience.check("its end");
        match listening.next().await.1 {
            What::Message(message) => assert_eq!(account.take(message.sequence), Arrival::Next),
            What::Lost(_) => break,
            What::Connected | What::Moved(_) | What::Left => {}
        }
    }
    let _publisher = Publisher::bind(&endpoint, "", 0).unwrap();
    // It rests: its heartbeats begin anew.
    let (_, message) = listening.message().await;
    assert!(matches!(account.take(message.sequence), Arrival::Restart(_)));
    assert_eq!((account.restarts, account.lost), (1, 0));
}

#[tokio::test]
async fn a_publisher_that_moves_stays_the_one_it_is() {
    let folder = TempDir::new().unwrap();
    let [here, there] = ["a.0", "b.0"].map(|name| ipc(&folder, name));
    let (mut subscriptions, mut heard) = Subscriptions::new(64);
    let mut publishers =
        [(&here, "a"), (&there, "b")].map(|(endpoint, name)| Publisher::bind(endpoint, name, 0).unwrap());
    // The second one has sent more by the time that it is listened to: its numbers alone look like a gap.
    for _ in 0..1000 {
        publishers[1].publish(pass(1));
    }
    let mut accounts: Accounts = Accounts::default();
    let (mut numbers, mut moved) = (Vec::new(), Vec::new());
    let patience = Patience::new();
    let mut names = ["here", "called otherwise", "there"].into_iter();
    let mut name = names.next().unwrap();
    subscriptions.follow([(0, name, here.clone())]);
    while name != "there" || accounts.entry("b", 0).is_none() {
        patience.check("the one that was started anew");
        for publisher in &mut publishers {
            publisher.publish(pass(1));
        }
        let Ok(Some(Heard { from, what })) = timeout(Duration::from_millis(20), heard.recv()).await else {
            continue;
        };
        numbers.push(from.clone());
        match what {
            What::Message(message) => {
                let (arrival, _) = accounts.take(&message).unwrap();
                let is_first = matches!(arrival, Arrival::First(_) | Arrival::Restart(_));
                assert!(is_first || arrival == Arrival::Next, "{arrival:?}");
                let worker = if *from == "there" { "b" } else { "a" };
                assert_eq!(&*message.metrics.unwrap().worker_id, worker, "named after the other place");
                if *from == name && name != "there" {
                    name = names.next().unwrap();
                    let endpoint = if name == "there" { &there } else { &here };
                    // It is known now which publisher it is.
                    subscriptions.follow([(1, name, endpoint.clone())]);
                }
            }
            What::Moved(before) => {
                accounts.begin_anew();
                moved.push((*from, before));
            }
            What::Connected => {}
            What::Lost(_) | What::Left => panic!("it is there"),
        }
    }
    assert_eq!(moved, [("there", here)], "another name is no move");
    assert!(numbers.iter().all(|from| *from == numbers[0]), "it is another source");
    assert_eq!((accounts.len(), accounts.entry("b", 0).unwrap().account.restarts), (1, 1));
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_costs_nobody_else() {
    let folder = TempDir::new().unwrap();
    let endpoint = ipc(&folder, "a.0");
    let Endpoint::Ipc(path) = &endpoint else { unreachable!() };
    let mut publisher = Publisher::bind(&endpoint, "", 0).unwrap();
    let mut stalled = UnixStream::connect(path).await.unwrap();
    stalled.write_all(SUBSCRIBER).await.unwrap();
    let mut greeting = vec![0; PUBLISHER.len()];
    stalled.read_exact(&mut greeting).await.unwrap();
    assert_eq!(greeting, PUBLISHER);
    // It has subscribed by the time that its first message comes.
    let mut begin = [0; 2];
    stalled.read_exact(&mut begin).await.unwrap();
    let mut listening = Listening::to(std::slice::from_ref(&endpoint));
    let mut account = Account::default();
    account.take(meet(&mut publisher, &mut listening).await);
    let mut last = 0;
    let patience = Patience::new();
    while last < 2 * QUEUE_RECORDS as u64 {
        patience.check("everything by the one that reads");
        for _ in 0..100 {
            last = publisher.publish(pass(1));
        }
        loop {
            let (_, message) = listening.message().await;
            account.take(message.sequence);
            if message.sequence == last {
                break;
            }
        }
    }
    assert_eq!((account.lost, account.restarts, publisher.dropped()), (0, 0, 0));
    // When the stalled one comes to read, it has the first messages, and then what there is room for again.
    let mut stalled = BufReader::new(stalled);
    let (mut kept, mut kept_bytes) = (0, 0);
    let mut before = None;
    let skipped = loop {
        let (number, bytes) = timeout(PATIENCE, stalled_message(&mut stalled, kept == 0)).await.unwrap();
        match before.replace(number) {
            Some(before) if number != before + 1 => break number - before - 1,
            _ => (kept, kept_bytes) = (kept + 1, kept_bytes + bytes),
        }
        assert!(kept < QUEUE_RECORDS * 3 / 2, "everything was kept for it");
        if kept % 100 == 0 {
            publisher.publish(pass(1));
        }
    };
    assert!(kept >= QUEUE_RECORDS, "{kept} messages were kept, and there was room for more");
    assert!(skipped >= QUEUE_RECORDS as u64 / 4, "lost: {skipped}");
    assert!(kept_bytes < QUEUE_RECORDS * 3 / 2 * 512, "{kept_bytes} bytes were kept for it");
}

/// Reads a message as it is on the wire, of the first but for its two bytes that were read: its number and its length.
async fn stalled_message(stalled: &mut BufReader<UnixStream>, is_first: bool) -> (u64, usize) {
    if !is_first {
        assert_eq!(stalled.read_u16().await.unwrap(), 0x0100, "an empty topic");
    }
    assert_eq!(stalled.read_u16().await.unwrap(), 0x0108, "a number of eight bytes");
    let number = stalled.read_u64().await.unwrap();
    let length = match stalled.read_u8().await.unwrap() {
        0 => u64::from(stalled.read_u8().await.unwrap()),
        flags => {
            assert_eq!(flags, 2, "a long frame, and the last");
            stalled.read_u64().await.unwrap()
        }
    };
    let mut payload = vec![0; length as usize];
    stalled.read_exact(&mut payload).await.unwrap();
    (number, payload.len())
}

#[tokio::test]
async fn what_waited_behind_a_reader_that_was_busy_says_so() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.0");
    let owner = UnixListener::bind(&path).unwrap();
    let (tell, mut heard) = mpsc::channel(1);
    let _subscription = Subscription::start(Endpoint::Ipc(path), 0, tell);
    let (mut stream, _) = owner.accept().await.unwrap();
    stream.write_all(PUBLISHER).await.unwrap();
    let mut opening = vec![0; SUBSCRIBER.len()];
    stream.read_exact(&mut opening).await.unwrap();
    let next =
        async |heard: &mut Receiver<Heard<u32>>| timeout(PATIENCE, heard.recv()).await.unwrap().unwrap().what;
    assert!(matches!(next(&mut heard).await, What::Connected));
    let message = |number: u8| [&b"\x01\0\x01\x08\0\0\0\0\0\0\0"[..], &[number], b"\0\x01\x80"].concat();
    // Of two that are read at once the first takes the room that there is, and the second waits for it.
    stream.write_all(&[message(0), message(1)].concat()).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while heard.is_empty() {
        assert!(Instant::now() < deadline, "nothing was heard");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // So the third lies in the socket until there is room.
    stream.write_all(&message(2)).await.unwrap();
    let busy = Duration::from_millis(50);
    tokio::time::sleep(busy).await;
    for number in 0..3 {
        let What::Message(message) = next(&mut heard).await else { panic!("no message") };
        assert_eq!(message.sequence, number);
        if number == 2 {
            assert!(message.waited >= busy, "it lay there longer than {:?}", message.waited);
        }
    }
}

#[tokio::test]
async fn an_endpoint_in_use_is_an_error_and_a_dead_ones_file_is_not() {
    let folder = TempDir::new().unwrap();
    let endpoint = ipc(&folder, "a.0");
    let Endpoint::Ipc(path) = &endpoint else { unreachable!() };
    let publisher = Publisher::bind(&endpoint, "", 0).unwrap();
    let error = Publisher::bind(&endpoint, "", 0).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot bind {endpoint}"));
    assert!(path.exists(), "the endpoint was taken away from its owner");
    drop(publisher);
    // Whoever owns it is too busy to accept: everything that may wait does.
    let owner = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let address = SockAddr::unix(path).unwrap();
    owner.bind(&address).unwrap();
    owner.listen(0).unwrap();
    let waiting: Vec<Socket> = std::iter::from_fn(|| {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(&address).is_ok().then_some(socket)
    })
    .collect();
    let error = Publisher::bind(&endpoint, "", 0).unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    assert!(path.exists() && !waiting.is_empty());
    drop((owner, waiting));
    std::fs::remove_file(path).unwrap();
    // As a process leaves it that was killed.
    drop(UnixListener::bind(path).unwrap());
    assert!(path.exists());
    Publisher::bind(&endpoint, "", 0).unwrap();
    assert!(!path.exists());
    // What is no socket is somebody's.
    std::fs::write(path, "notes").unwrap();
    let error = Publisher::bind(&endpoint, "", 0).unwrap_err();
    assert_eq!(error.source.to_string(), "something that is no socket is there");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "notes");

    let owner = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken: Endpoint = format!("tcp://{}", owner.local_addr().unwrap()).parse().unwrap();
    let error = Publisher::bind(&taken, "", 0).unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    let error = Publisher::bind(&ipc(&folder, "b.0"), &"n".repeat(257), 0).unwrap_err();
    assert_eq!(error.source.to_string(), "worker's name longer than 256 bytes");
    let nowhere = ipc(&folder, "no/such/folder");
    Publisher::bind(&nowhere, "", 0).unwrap_err();
    Publisher::bind(&ipc(&folder, &"long".repeat(40)), "", 0).unwrap_err();
}

#[test]
fn two_that_take_over_one_endpoint_do_so_one_after_the_other() {
    let folder = TempDir::new().unwrap();
    let endpoint = ipc(&folder, "a.0");
    let Endpoint::Ipc(path) = &endpoint else { unreachable!() };
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    // One has found the socket of somebody who is gone, and takes it over.
    let lock = File::open(folder.path()).unwrap();
    lock.lock().unwrap();
    let (tell, told) = sync_channel(1);
    let other = {
        let endpoint = endpoint.clone();
        std::thread::spawn(move || tell.send(Publisher::bind(&endpoint, "", 0).map(drop)))
    };
    let early = told.recv_timeout(Duration::from_millis(100));
    assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "the other has not waited: {early:?}");
    std::fs::remove_file(path).unwrap();
    let _owner = std::os::unix::net::UnixListener::bind(path).unwrap();
    lock.unlock().unwrap();
    let error = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    assert!(path.exists(), "the endpoint was taken away from its owner");
    other.join().unwrap().unwrap();
}

/// A connection to a publisher that has answered.
async fn answered(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut greeting = vec![0; PUBLISHER.len()];
    timeout(PATIENCE, stream.read_exact(&mut greeting)).await.unwrap().unwrap();
    stream
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    const PLACES: usize = 256;
    let (tell, told) = sync_channel(0);
    let any = "tcp://127.0.0.1:0".parse().unwrap();
    let mut publisher =
        Publisher::bind_telling(&any, "", 0, move |places| tell.send(places).unwrap()).unwrap();
    let address = publisher.endpoint().to_string().replace("tcp://", "");
    let mut idle = Vec::new();
    for _ in 0..PLACES {
        idle.push(answered(&address).await);
    }
    let mut listening = Listening::to(&[publisher.endpoint().clone()]);
    let first = listening.next().await.1;
    assert!(matches!(first, What::Connected), "it was kept out: {first:?}");
    assert_eq!(timeout(PATIENCE, idle.remove(0).read(&mut [0])).await.unwrap().unwrap(), 0, "it has room");
    assert_eq!(publisher.turned_away(), 0);

    // Whoever greets has a place until it leaves; then one more is turned away, and that is told.
    drop(idle);
    let mut greeted = Vec::new();
    for _ in 1..PLACES {
        let mut stream = answered(&address).await;
        stream.write_all(&SUBSCRIBER[..PUBLISHER.len()]).await.unwrap();
        stream.write_all(&SUBSCRIBER[PUBLISHER.len()..]).await.unwrap();
        greeted.push(stream);
    }
    for stream in &mut greeted {
        timeout(PATIENCE, stream.read_exact(&mut [0; 2])).await.unwrap().unwrap();
    }
    let mut late = TcpStream::connect(&address).await.unwrap();
    let patience = Patience::new();
    while publisher.turned_away() == 0 {
        patience.check("one that is turned away");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The publisher's thread is held until it is heard, and takes nothing: the scheduler is not, and loses what there is no room for.
    for _ in 0..QUEUE_RECORDS + 3 {
        publisher.publish(pass(1));
    }
    assert_eq!(publisher.dropped(), 3);
    assert_eq!(told.recv().unwrap(), PLACES);
    assert_eq!(timeout(PATIENCE, late.read(&mut [0])).await.unwrap().unwrap(), 0, "there was no room");
    assert_eq!(publisher.turned_away(), 1);
}

#[tokio::test]
async fn each_reason_is_told_once_until_the_publisher_is_there() {
    let folder = TempDir::new().unwrap();
    let endpoint = ipc(&folder, "a.0");
    let Endpoint::Ipc(path) = &endpoint else { unreachable!() };
    let (mut subscriptions, mut heard) = Subscriptions::new(64);
    subscriptions.follow([((), 7, endpoint.clone())]);
    let next = async |heard: &mut Receiver<Heard<Origin<u32>>>| {
        let Heard { from, what } = timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
        assert_eq!(*from, 7);
        what
    };
    let mut reasons = Vec::new();
    let mut reason = async |heard: &mut Receiver<Heard<Origin<u32>>>| {
        let What::Lost(error) = next(heard).await else { panic!("something else was heard") };
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        assert!(!reasons.contains(&reason), "told twice: {reason}");
        reasons.push(reason.clone());
        reason
    };
    assert!(reason(&mut heard).await.contains("No such file"));
    // Nobody listens at the socket.
    drop(UnixListener::bind(path).unwrap());
    assert!(reason(&mut heard).await.contains("refused"));
    std::fs::remove_file(path).unwrap();
    let owner = UnixListener::bind(path).unwrap();
    let (mut stream, _) = timeout(PATIENCE, owner.accept()).await.unwrap().unwrap();
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
    assert_eq!(reason(&mut heard).await, "not a ZeroMQ 3 peer without security");
    drop(stream);
    drop(owner);
    std::fs::remove_file(path).unwrap();
    let publisher = Publisher::bind(&endpoint, "", 0).unwrap();
    let patience = Patience::new();
    while !matches!(next(&mut heard).await, What::Connected) {
        patience.check("the publisher");
    }
    let failures = |subscriptions: &Subscriptions<(), u32>| subscriptions.iter().next().unwrap().1.failures();
    let before = failures(&subscriptions);
    assert!(before >= 3, "{before}");
    drop(publisher);
    while !matches!(next(&mut heard).await, What::Lost(_)) {
        patience.check("its end");
    }
    assert!(failures(&subscriptions) > before);
    subscriptions.follow([]);
    while !matches!(next(&mut heard).await, What::Left) {
        patience.check("the end of the subscription");
    }
}

#[tokio::test]
async fn a_file_that_took_the_endpoints_place_is_left() {
    let folder = TempDir::new().unwrap();
    let endpoint = ipc(&folder, "a.0");
    let Endpoint::Ipc(path) = &endpoint else { unreachable!() };
    let publisher = Publisher::bind(&endpoint, "", 0).unwrap();
    std::fs::remove_file(path).unwrap();
    let other = Publisher::bind(&endpoint, "", 0).unwrap();
    drop(publisher);
    assert!(path.exists(), "the endpoint of another was taken away");
    drop(other);
    assert!(!path.exists());
}

/// Plays a publisher that sends these bytes to whoever comes, then dies.
async fn play(owner: &TcpListener, bytes: &[u8]) {
    let (mut stream, _) = timeout(PATIENCE, owner.accept()).await.unwrap().unwrap();
    stream.write_all(PUBLISHER).await.unwrap();
    let mut opening = vec![0; SUBSCRIBER.len()];
    stream.read_exact(&mut opening).await.unwrap();
    assert_eq!(opening, SUBSCRIBER);
    stream.write_all(bytes).await.unwrap();
}

#[tokio::test]
async fn a_publisher_that_dies_or_lies_is_told_of_and_looked_for_again() {
    let owner = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint: Endpoint = format!("tcp://{}", owner.local_addr().unwrap()).parse().unwrap();
    let mut listening = Listening::to(&[endpoint]);
    let good = b"\x01\x00\x01\x08\0\0\0\0\0\0\0\x05\x00\x01\x80";
    for (name, bytes, reason) in [
        ("killed within a message", &good[..9], "the peer closed the connection"),
        (
            "two frames",
            b"\x01\x00\x00\x01\x80",
            "peer broke the protocol: a message is not topic, sequence number and record",
        ),
        (
            "four frames",
            b"\x01\0\x01\0\x01\0\0\0",
            "peer broke the protocol: a message is not topic, sequence number and record",
        ),
        (
            "a number of four bytes",
            b"\x01\0\x01\x04\0\0\0\0\0\x01\x80",
            "peer broke the protocol: a message is not topic, sequence number and record",
        ),
        ("a frame of 2^40 bytes", b"\x02\0\0\x01\0\0\0\0\0", "frame too long, bytes: 1099511627776"),
        ("more than any record", b"\x02\0\0\0\0\0\x01\0\x01", "frame too long, bytes: 65537"),
    ] {
        play(&owner, bytes).await;
        listening.connected(1).await;
        let (_, What::Lost(error)) = listening.next().await else { panic!("{name}: heard something else") };
        assert_eq!(error.to_string(), reason, "{name}");
    }
    // A payload that is no record costs itself and nothing more.
    play(&owner, &[&b"\x01\x00\x01\x08\0\0\0\0\0\0\0\x04\x00\x01\x90"[..], good].concat()).await;
    let (_, bad) = listening.message().await;
    assert_eq!((bad.sequence, bad.metrics.is_err()), (4, true));
    let (_, message) = listening.message().await;
    assert_eq!((message.sequence, message.metrics.is_ok()), (5, true));
}
