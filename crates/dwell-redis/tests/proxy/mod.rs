//! A line to a server that can be made to break at a chosen moment.

use dwell_core::{Clock, SystemClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

/// What happens to the next script that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Trouble {
    /// It is done, and then the line breaks before the answer.
    BreakAfter = 1,
    /// It never arrives, and the line breaks.
    BreakBefore,
    /// It is done, and its answer never comes. The line breaks only after a while.
    Silence,
    /// It is under way when the line breaks after a while, and arrives when it is let go.
    Late,
    /// Not of a script, but of the next read that blocks: nothing that the server says ever comes, and the line stays.
    Deaf,
    /// Not of a script, but of the next wait for replicas: it never arrives, and the line breaks.
    BreakWait,
}

/// Longer than the clients here wait for an answer.
const A_WHILE: Duration = Duration::from_millis(2500);

pub(crate) struct Proxy {
    pub(crate) port: u16,
    line: Arc<Line>,
}

struct Line {
    trouble: AtomicU8,
    let_go: Notify,
    arrived: Notify,
}

impl Proxy {
    /// A port of its own; what it is for is told later, because a server may have to know that port first.
    pub(crate) async fn new() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = Line { trouble: AtomicU8::new(0), let_go: Notify::new(), arrived: Notify::new() };
        (Self { port: listener.local_addr().unwrap().port(), line: Arc::new(line) }, listener)
    }

    pub(crate) fn lead_to(&self, listener: TcpListener, port: u16) {
        let line = self.line.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                    tokio::spawn(line.clone().carry(client, server));
                }
            }
        });
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        self.line.trouble.store(trouble as u8, Ordering::SeqCst);
    }

    /// Whether the trouble has come.
    pub(crate) fn is_over(&self) -> bool {
        self.line.trouble.load(Ordering::SeqCst) == 0
    }

    /// Once the client has given up a line on which it heard nothing.
    pub(crate) async fn is_given_up(&self) {
        self.line.arrived.notified().await;
    }

    /// Lets a script go that is late, and waits until the server has answered it.
    pub(crate) async fn let_go(&self) {
        self.line.let_go.notify_one();
        self.line.arrived.notified().await;
    }
}

impl Line {
    fn meets(&self, request: &[u8]) -> Option<Trouble> {
        let troubles = [
            Trouble::BreakAfter,
            Trouble::BreakBefore,
            Trouble::Silence,
            Trouble::Late,
            Trouble::Deaf,
            Trouble::BreakWait,
        ];
        let trouble = *troubles.iter().find(|of| **of as u8 == self.trouble.load(Ordering::SeqCst))?;
        let of: &[u8] = match trouble {
            Trouble::Deaf => b"XREAD\r\n",
            Trouble::BreakWait => b"WAIT\r\n",
            _ => b"EVALSHA",
        };
        let is_it = request.windows(of.len()).any(|window| window == of);
        let taken = is_it && self.trouble.swap(0, Ordering::SeqCst) != 0;
        taken.then_some(trouble)
    }

    async fn carry(self: Arc<Self>, mut client: TcpStream, mut server: TcpStream) {
        let (mut request, mut answer) = (vec![0; 65536], vec![0; 65536]);
        loop {
            tokio::select! {
                read = client.read(&mut request) => {
                    let Ok(length @ 1..) = read else { return };
                    match self.meets(&request[..length]) {
                        None => {
                            if server.write_all(&request[..length]).await.is_err() { return }
                        }
                        Some(Trouble::BreakBefore | Trouble::BreakWait) => return,
                        Some(Trouble::Deaf) => {
                            // Until the client gives it up.
                            while matches!(client.read(&mut request).await, Ok(1..)) {}
                            self.arrived.notify_one();
                            return;
                        }
                        Some(Trouble::Late) => {
                            SystemClock::new().sleep(A_WHILE).await;
                            drop(client);
                            self.let_go.notified().await;
                            let _ = server.write_all(&request[..length]).await;
                            let _ = server.read(&mut answer).await;
                            self.arrived.notify_one();
                            return;
                        }
                        Some(trouble) => {
                            let _ = server.write_all(&request[..length]).await;
                            let _ = server.read(&mut answer).await;
                            if trouble == Trouble::Silence { SystemClock::new().sleep(A_WHILE).await }
                            return;
                        }
                    }
                }
                read = server.read(&mut answer) => {
                    let Ok(length @ 1..) = read else { return };
                    if client.write_all(&answer[..length]).await.is_err() { return }
                }
            }
        }
    }
}
