//! A TCP proxy that injects connection faults between a client and its server.

use crate::servers::free_ports;
use dwell_core::{Clock, SystemClock};
use futures_util::future::pending;
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc, watch},
    task::AbortHandle,
};

/// A TCP proxy on a port of the loopback interface, in front of one server. Dropping it closes
/// every connection.
///
/// It has its port before it knows the server's, because a server that announces its address must
/// announce the proxy's. Until [`Self::redirect`] sets the server, connections are accepted, but
/// nothing is forwarded.
///
/// ```
/// # #[tokio::main] async fn main() -> std::io::Result<()> {
/// use dwell_conformance::Proxy;
///
/// let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let proxy = Proxy::start().await?;
/// proxy.redirect(server.local_addr()?.port());
/// let client = tokio::net::TcpStream::connect(proxy.address()).await?;
/// proxy.freeze_existing();
/// # drop(client); Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// Fault of one request, see [`Proxy::break_next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The server answers it, and the connection is reset before the answer reaches the client.
    ResetAfter,
    /// The connection is reset before the request reaches the server.
    ResetBefore,
    /// The server answers it, and the answer never reaches the client. The connection is reset 2.5
    /// s later.
    Silence,
    /// The client's connection is reset after 2.5 s. The request reaches the server when
    /// [`Proxy::let_go`] is called.
    Late,
    /// Neither this request nor anything after it reaches the server. The connection stays open
    /// until the client closes it.
    Deaf,
}

/// How long a connection stays open after [`Trouble::Silence`] and [`Trouble::Late`].
const SILENCE: Duration = Duration::from_millis(2500);

/// Requests that a connection carries under [`Proxy::reset_calls`] before its first reset: enough
/// to open it.
const FIRST_RESET: u64 = 8;

/// Number of consecutive requests among which [`Proxy::reset_calls`] distributes its resets.
const RESETS: u64 = 7;

#[derive(Clone, Debug, Default)]
struct State {
    target: Option<u16>,
    refuses: bool,
    freezes: bool,
    /// Connections with a lower number are frozen.
    frozen_below: u64,
    /// Connections with a lower number are reset.
    reset_below: u64,
    delay: Duration,
    resets_calls: bool,
}

impl State {
    fn is_frozen(&self, connection: u64) -> bool {
        self.freezes || connection < self.frozen_below
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of connections accepted so far, which is the number of the next one.
    accepted: AtomicU64,
    /// The next request that contains these bytes has this fault.
    next: Mutex<Option<(Vec<u8>, Trouble)>>,
    let_go: Notify,
    ended: Notify,
}

impl Proxy {
    /// Listens on a free port.
    pub async fn start() -> io::Result<Self> {
        let [port] = free_ports()?;
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let (state, seen) = watch::channel(State::default());
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(port, listener, seen, shared.clone())).abort_handle();
        Ok(Self { port, state, shared, accepting })
    }

    /// Returns the port that the proxy listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the host and port that the proxy listens on.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Forwards new connections to the server on this port. Existing connections are not affected.
    pub fn redirect(&self, port: u16) {
        self.change(|state| state.target = Some(port));
    }

    /// Forwards everything again, without delay. Frozen connections continue.
    pub fn pass(&self) {
        self.change(|state| {
            *state = State { target: state.target, reset_below: state.reset_below, ..State::default() };
        });
    }

    /// Stops forwarding on all open connections, without closing them. New ones work.
    pub fn freeze_existing(&self) {
        let accepted = self.accepted();
        self.change(|state| state.frozen_below = accepted);
    }

    /// Stops forwarding on all connections, including new ones, without closing them.
    pub fn freeze(&self) {
        self.change(|state| state.freezes = true);
    }

    /// Resets all open connections. New ones work.
    pub fn reset(&self) {
        let accepted = self.accepted();
        self.change(|state| state.reset_below = accepted);
    }

    /// Resets all open connections and refuses new ones.
    pub fn refuse(&self) {
        let accepted = self.accepted();
        self.change(|state| (state.reset_below, state.refuses) = (accepted, true));
    }

    /// Delays all answers of the server by this duration.
    pub fn delay(&self, by: Duration) {
        self.change(|state| state.delay = by);
    }

    /// Resets every connection in the middle of a call, each at a different call: alternately
    /// before the request reaches the server and before the answer reaches the client.
    pub fn reset_calls(&self) {
        self.change(|state| state.resets_calls = true);
    }

    /// Injects this fault into the next request that contains these bytes.
    pub fn break_next(&self, request: impl AsRef<[u8]>, trouble: Trouble) {
        *self.shared.next() = Some((request.as_ref().to_owned(), trouble));
    }

    /// Whether the request of [`Self::break_next`] has arrived.
    pub fn is_over(&self) -> bool {
        self.shared.next().is_none()
    }

    /// Waits until the client has closed a connection with [`Trouble::Deaf`].
    pub async fn is_given_up(&self) {
        self.shared.ended.notified().await;
    }

    /// Sends the request with [`Trouble::Late`] to the server, and waits for the answer.
    pub async fn let_go(&self) {
        self.shared.let_go.notify_one();
        self.shared.ended.notified().await;
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn next(&self) -> MutexGuard<'_, Option<(Vec<u8>, Trouble)>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault of this request, if any.
    fn meets(&self, request: &[u8]) -> Option<Trouble> {
        let mut next = self.next();
        let is_it = |(part, _): &mut (Vec<u8>, Trouble)| {
            part.is_empty() || request.windows(part.len()).any(|window| window == part.as_slice())
        };
        next.take_if(is_it).map(|(_, trouble)| trouble)
    }
}

async fn accept(port: u16, listener: TcpListener, mut state: watch::Receiver<State>, shared: Arc<Shared>) {
    let mut listener = Some(listener);
    loop {
        if state.borrow_and_update().refuses {
            listener = None;
            if state.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Some(open) = &listener else {
            listener = TcpListener::bind(("127.0.0.1", port)).await.ok();
            if listener.is_none() {
                SystemClock::new().sleep(Duration::from_millis(10)).await;
            }
            continue;
        };
        tokio::select! {
            biased;
            changed = state.changed() => if changed.is_err() { return },
            accepted = open.accept() => if let Ok((client, _)) = accepted {
                let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
                let line = Line { id, state: state.clone(), shared: shared.clone() };
                tokio::spawn(line.serve(client));
            },
        }
    }
}

/// A connection.
#[derive(Clone)]
struct Line {
    id: u64,
    state: watch::Receiver<State>,
    shared: Arc<Shared>,
}

/// Reason for the end of forwarding.
enum End {
    /// The client or the server has closed it.
    Closed,
    Reset,
    Met(Trouble, Vec<u8>),
}

impl Line {
    async fn serve(mut self, mut client: TcpStream) {
        let is_carried = |state: &State| state.target.is_some() && !state.is_frozen(self.id);
        let target = match self.state.wait_for(is_carried).await {
            Ok(state) => state.target,
            Err(_) => None,
        };
        let Some(port) = target else { return };
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
            let _ = client.set_zero_linger();
            return;
        };
        // An answer must not wait for the acknowledgement of the previous one.
        let _ = client.set_nodelay(true).and(server.set_nodelay(true));
        match self.carry(&mut client, &mut server).await {
            End::Closed => {}
            End::Reset => _ = client.set_zero_linger(),
            End::Met(trouble, request) => self.trouble(trouble, &request, client, server).await,
        }
    }

    /// Forwards in both directions.
    async fn carry(&self, client: &mut TcpStream, server: &mut TcpStream) -> End {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut state = self.state.clone();
        tokio::select! {
            biased;
            // The proxy was dropped, or resets this connection.
            _ = state.wait_for(|state| self.id < state.reset_below) => End::Reset,
            end = self.copy(from_client, to_server, true) => end,
            end = self.copy(from_server, to_client, false) => end,
        }
    }

    async fn copy(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        is_request: bool,
    ) -> End {
        let clock = SystemClock::new();
        let (chunks, mut queue) = mpsc::unbounded_channel();
        let read = async {
            // Dropped at the end, so that the other side gets all data that was read.
            let chunks = chunks;
            let (mut buffer, mut count) = (vec![0; 65536], 0);
            while let Ok(length @ 1..) = from.read(&mut buffer).await {
                let state = self.thawed().await;
                let chunk = buffer[..length].to_owned();
                count += u64::from(is_request);
                let delay = if is_request { Duration::ZERO } else { state.delay };
                let trouble = match is_request {
                    true => self.shared.meets(&chunk).or_else(|| self.reset(&state, count)),
                    false => None,
                };
                if let Some(trouble) = trouble {
                    return End::Met(trouble, chunk);
                }
                let _ = chunks.send((clock.elapsed() + delay, chunk));
            }
            drop(chunks);
            pending().await
        };
        let write = async {
            while let Some((due, chunk)) = queue.recv().await {
                clock.sleep(due.saturating_sub(clock.elapsed())).await;
                self.thawed().await;
                if to.write_all(&chunk).await.is_err() {
                    break;
                }
            }
            End::Closed
        };
        tokio::select! {
            biased;
            end = write => end,
            end = read => end,
        }
    }

    /// Waits until this connection is not frozen, and returns the state.
    async fn thawed(&self) -> State {
        let mut state = self.state.clone();
        let thawed = state.wait_for(|state| !state.is_frozen(self.id)).await;
        thawed.map(|state| state.clone()).unwrap_or_default()
    }

    fn reset(&self, state: &State, count: u64) -> Option<Trouble> {
        let at = FIRST_RESET + self.id % RESETS;
        let trouble = if self.id.is_multiple_of(2) { Trouble::ResetAfter } else { Trouble::ResetBefore };
        (state.resets_calls && count >= at).then_some(trouble)
    }

    async fn trouble(&self, trouble: Trouble, request: &[u8], mut client: TcpStream, mut server: TcpStream) {
        let clock = SystemClock::new();
        let mut answer = vec![0; 65536];
        let _ = client.set_zero_linger();
        match trouble {
            Trouble::ResetBefore => {}
            Trouble::ResetAfter | Trouble::Silence => {
                let _ = server.write_all(request).await;
                let _ = server.read(&mut answer).await;
                if trouble == Trouble::Silence {
                    clock.sleep(SILENCE).await;
                }
            }
            Trouble::Late => {
                clock.sleep(SILENCE).await;
                drop(client);
                self.shared.let_go.notified().await;
                let _ = server.write_all(request).await;
                let _ = server.read(&mut answer).await;
                self.shared.ended.notify_one();
            }
            Trouble::Deaf => {
                while matches!(client.read(&mut answer).await, Ok(1..)) {}
                self.shared.ended.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    /// Longer than any step of these tests, even on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// How long a frozen connection is observed.
    const QUIET: Duration = Duration::from_millis(100);

    /// A server that answers each request with its own name and the request.
    async fn server(name: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 64];
                    while let Ok(length @ 1..) = client.read(&mut request).await {
                        client.write_all(name.as_bytes()).await.unwrap();
                        if client.write_all(&request[..length]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    async fn proxy() -> Proxy {
        let proxy = Proxy::start().await.unwrap();
        proxy.redirect(server("one ").await);
        proxy
    }

    async fn within<T>(time: Duration, of: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = of => Some(done),
            () = SystemClock::new().sleep(time) => None,
        }
    }

    async fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.address()).await.unwrap()
    }

    /// Reads an answer of this many bytes.
    async fn read(client: &mut TcpStream, length: usize) -> io::Result<String> {
        let mut answer = vec![0; length];
        let read = within(PATIENCE, client.read_exact(&mut answer)).await;
        read.expect("an answer or an error").map(|_| String::from_utf8(answer).unwrap())
    }

    async fn ask(client: &mut TcpStream, request: &str) -> io::Result<String> {
        client.write_all(request.as_bytes()).await?;
        read(client, request.len() + 4).await
    }

    async fn is_silent(client: &mut TcpStream) -> bool {
        let mut answer = [0; 1];
        within(QUIET, client.peek(&mut answer)).await.is_none()
    }

    #[tokio::test]
    async fn requests_and_answers_pass() {
        let proxy = proxy().await;
        let mut client = connect(&proxy).await;
        assert_eq!(ask(&mut client, "ping").await.unwrap(), "one ping");
        assert_eq!(proxy.accepted(), 1);
    }

    #[tokio::test]
    async fn frozen_connections_stay_open_and_continue_and_new_ones_work() {
        let proxy = proxy().await;
        let mut old = connect(&proxy).await;
        ask(&mut old, "ping").await.unwrap();
        proxy.freeze_existing();
        old.write_all(b"ping").await.unwrap();
        assert!(is_silent(&mut old).await);
        let mut new = connect(&proxy).await;
        assert_eq!(ask(&mut new, "ping").await.unwrap(), "one ping");
        proxy.pass();
        assert_eq!(read(&mut old, 8).await.unwrap(), "one ping");
    }

    #[tokio::test]
    async fn freezing_all_freezes_new_connections_as_well() {
        let proxy = proxy().await;
        proxy.freeze();
        let mut new = connect(&proxy).await;
        new.write_all(b"ping").await.unwrap();
        assert!(is_silent(&mut new).await);
        proxy.pass();
        assert_eq!(read(&mut new, 8).await.unwrap(), "one ping");
    }

    #[tokio::test]
    async fn reset_closes_existing_connections_with_an_error_and_new_ones_work() {
        let proxy = proxy().await;
        let mut old = connect(&proxy).await;
        ask(&mut old, "ping").await.unwrap();
        proxy.reset();
        assert_eq!(read(&mut old, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(ask(&mut connect(&proxy).await, "ping").await.unwrap(), "one ping");
    }

    #[tokio::test]
    async fn refused_connections_are_accepted_again_after_pass() {
        let proxy = proxy().await;
        let mut old = connect(&proxy).await;
        ask(&mut old, "ping").await.unwrap();
        proxy.refuse();
        assert_eq!(read(&mut old, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let refused = async {
            loop {
                // The listener may still be closing.
                if let Err(error) = TcpStream::connect(proxy.address()).await {
                    return error.kind();
                }
            }
        };
        assert_eq!(within(PATIENCE, refused).await, Some(ErrorKind::ConnectionRefused));
        proxy.pass();
        let accepted = async {
            loop {
                if let Ok(client) = TcpStream::connect(proxy.address()).await {
                    return client;
                }
            }
        };
        let mut new = within(PATIENCE, accepted).await.unwrap();
        assert_eq!(ask(&mut new, "ping").await.unwrap(), "one ping");
    }

    #[tokio::test]
    async fn delays_of_answers_do_not_add_up() {
        let proxy = proxy().await;
        let by = Duration::from_millis(300);
        proxy.delay(by);
        let mut client = connect(&proxy).await;
        let (clock, mut ids) = (SystemClock::new(), 0);
        let start = clock.elapsed();
        let (mut from, mut to) = client.split();
        let sends = async {
            for _ in 0..20 {
                to.write_all(b"ping").await.unwrap();
                clock.sleep(Duration::from_millis(5)).await;
            }
        };
        let reads = async {
            let mut answer = [0; 8];
            while ids < 20 {
                from.read_exact(&mut answer[..4]).await.unwrap();
                assert!(clock.elapsed() - start >= by);
                ids += usize::from(&answer[..4] == b"ping");
            }
        };
        tokio::join!(sends, reads);
        let took = clock.elapsed() - start;
        assert!(took < by * 10, "the delays add up: {took:?}");
    }

    #[tokio::test]
    async fn redirected_connections_reach_the_other_server_and_existing_ones_stay() {
        let proxy = proxy().await;
        let mut old = connect(&proxy).await;
        ask(&mut old, "ping").await.unwrap();
        proxy.redirect(server("two ").await);
        assert_eq!(ask(&mut old, "ping").await.unwrap(), "one ping");
        assert_eq!(ask(&mut connect(&proxy).await, "ping").await.unwrap(), "two ping");
    }

    #[tokio::test]
    async fn a_fault_affects_one_request_only() {
        let proxy = proxy().await;
        for trouble in [Trouble::ResetBefore, Trouble::ResetAfter] {
            proxy.break_next("boom", trouble);
            let mut client = connect(&proxy).await;
            ask(&mut client, "ping").await.unwrap();
            assert!(!proxy.is_over());
            let error = ask(&mut client, "a boom").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{trouble:?}");
            assert!(proxy.is_over());
            assert_eq!(ask(&mut connect(&proxy).await, "boom").await.unwrap(), "one boom");
        }
    }

    #[tokio::test]
    async fn every_connection_carries_some_calls_and_is_reset_in_one() {
        let proxy = proxy().await;
        proxy.reset_calls();
        let mut counts = vec![];
        for _ in 0..4 {
            let mut client = connect(&proxy).await;
            let mut count = 0;
            while ask(&mut client, "ping").await.is_ok() {
                count += 1;
            }
            counts.push(count);
        }
        assert_eq!(counts, [7, 8, 9, 10]);
        proxy.pass();
        let mut client = connect(&proxy).await;
        for _ in 0..20 {
            ask(&mut client, "ping").await.unwrap();
        }
    }
}
