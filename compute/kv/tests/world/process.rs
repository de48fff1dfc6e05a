//! Nodes and front ends as processes of a test's own binary, and a client as small as can be.

use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_kv::serve::{Clients, Config, Tls, run};
use farmem_memory::{Config as NodeConfig, Node};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const ROLE: &str = "FARMEM_TEST_ROLE";

/// A process of this test's binary. Killed when dropped.
pub struct Process {
    pub child: Child,
    pub at: String,
    /// Where its counters are, if it shows them.
    pub counters: Option<String>,
}

impl Process {
    pub fn start(role: &str) -> Process {
        Process::start_by(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// Starts one in a network namespace.
    pub fn start_in(namespace: &str, role: &str) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Process::start_by(command, role)
    }

    fn start_by(mut command: Command, role: &str) -> Process {
        command.args(["another_process", "--exact", "--nocapture"]).env(ROLE, role).stdout(Stdio::piped());
        keep_from_threads(&mut command, libc::SIGTERM);
        if let Some(bytes) = role.split(" segment=").nth(1).and_then(|rest| rest.split(' ').next()) {
            command.env("FARMEM_KV_SEGMENT", bytes);
        }
        if role.contains(" metrics=") {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = out.by_ref().lines().map_while(Result::ok);
        let said = lines.find_map(|line| line.split("ready at ").nth(1).map(str::to_owned));
        // After a minute the test harness says there that the process still runs. If nobody could read that, it
        // would end.
        child.stdout = Some(out.into_inner());
        let counters = child.stderr.take().map(|said| {
            let mut lines = BufReader::new(said).lines().map_while(Result::ok);
            let at = lines.find_map(|line| {
                let at = line.split("counters at http://").nth(1)?.strip_suffix("/metrics");
                at.map(str::to_owned)
            });
            // What it says later is shown, too.
            std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
            at.expect("it shows its counters")
        });
        Process { child, at: said.expect("it is ready"), counters }
    }

    pub fn node(way: Transport) -> Process {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let n = STARTED.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("farmem-kv-{}-{n}.sock", std::process::id()));
        match way {
            Transport::Shm => Process::start(&format!("node unix:{}", socket.display())),
            _ => Process::start("node 127.0.0.1:0"),
        }
    }

    pub fn front(name: &str, nodes: &str) -> Process {
        Process::start(&format!("front {name} {nodes}"))
    }

    /// Bytes of memory that it has had, at most. The kernel adds up its pages by parts, so that a
    /// later call may say some less.
    pub fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<usize>().unwrap() << 10
    }

    /// CPU time that it has taken.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // Behind the name: ticks of a hundredth of a second in user mode, and in the kernel.
        let words = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        Duration::from_millis(10 * words.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.at)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn signal(process: &Process, name: &str) {
    let sent = Command::new("kill").args([name, &process.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Whether every thread of a process has this state.
pub fn are_all(pid: u32, state: char) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state))
    })
}

pub fn config(name: &str, nodes: &str) -> Config {
    Config {
        trust: farmem::Trust::default(),
        name: name.into(),
        nodes: nodes.split(',').map(str::to_owned).collect(),
        mirror: false,
        spares: Vec::new(),
        transport: Transport::Auto,
        grace: Duration::from_secs(1),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        local: 16 << 20,
        maxmemory: None,
        clients: Clients::default(),
        metrics: None,
    }
}

/// Has a signal wait until the process asks for it. A front end takes signals before it has threads; here there
/// are a test's, one of which would end the process at once.
#[allow(unsafe_code)] // Between fork and exec there is no safe way to set a mask.
fn keep_from_threads(command: &mut Command, signal: i32) {
    // SAFETY: the closure makes one system call on a set that it has made itself.
    unsafe {
        command.pre_exec(move || {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// What a process of this test does instead of testing. To be called by a test named `another_process`.
pub fn another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let parent = std::os::unix::process::parent_id();
    let orphaned = move || std::os::unix::process::parent_id() != parent;
    match words[..] {
        ["node", at, ref slabs @ ..] => {
            let slabs = slabs.first().map_or(16, |slabs| slabs.parse().unwrap());
            let listen: Vec<NodeAddr> = vec![at.parse().unwrap()];
            let node = Node::start(&NodeConfig::new(slabs * (64 << 20), listen)).unwrap();
            println!("ready at {}", node.addresses()[0]);
            while !orphaned() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        ["front", name, nodes, ref at @ ..] => {
            std::thread::spawn(move || {
                while !orphaned() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                std::process::exit(0);
            });
            let mut config = config(name, nodes);
            for option in at {
                match option.split_once('=') {
                    Some(("clients", most)) => config.clients.most = most.parse().unwrap(),
                    Some(("kept", bytes)) => config.clients.kept = bytes.parse().unwrap(),
                    Some(("unread", ms)) => config.clients.unread = Duration::from_millis(ms.parse().unwrap()),
                    Some(("password", password)) => config.clients.password = Some(password.into()),
                    Some(("maxmemory", bytes)) => config.maxmemory = Some(bytes.parse().unwrap()),
                    Some(("way", "tcp")) => config.transport = Transport::Tcp,
                    Some(("mirror", yes)) => config.mirror = yes == "yes",
                    Some(("spare", at)) => config.spares = vec![at.into()],
                    Some(("tls", papers)) => config.clients.tls = Some(tls(papers, at)),
                    Some(("clients-show" | "segment", _)) => {}
                    Some(("metrics", at)) => config.metrics = Some(at.parse().unwrap()),
                    _ => config.listen = vec![option.parse().unwrap()],
                }
            }
            let served = run(&config, |at| println!("ready at {}", at[0]), std::rc::Rc::new(|_| ()));
            eprintln!("{served:?}");
        }
        _ => panic!("{role}"),
    }
    std::process::exit(0);
}

/// A server's certificate of this folder, and an authority of clients' ones if these are asked for.
fn tls(papers: &str, options: &[&str]) -> Tls {
    let of = |name: &str| std::fs::read(format!("{papers}/{name}")).unwrap();
    let authority = options.contains(&"clients-show=yes").then(|| of("ca.crt"));
    Tls::new(&of("server.crt"), &of("server.key"), authority.as_deref()).unwrap()
}

/// Sends each line, and judges its reply.
pub fn answers(client: &mut Client, lines: &[(&str, &str)]) {
    for (said, expected) in lines {
        assert_eq!(client.ask(said), *expected, "{said}");
    }
}

/// Whether a reply is the expected one. A key that was given a while to live may have less of it by
/// now, on a machine that is busy.
pub fn is_so(reply: &str, expected: &str) -> bool {
    let seconds = |text: &str| text.strip_prefix(':').and_then(|n| n.parse::<i64>().ok());
    match (seconds(reply), expected) {
        (Some(left), ":100") => (40..=100).contains(&left),
        _ => reply == expected,
    }
}

/// A redis client, as small as can be.
pub struct Client {
    pub stream: BufReader<TcpStream>,
}

/// A reply: its first byte and its text; arrays in brackets.
pub type Said = Option<String>;

impl Client {
    /// The reply to a request that has a limit of time, and changes nothing if that passes: a slow
    /// machine is asked again.
    pub fn on_time(&mut self, request: &[&str]) -> String {
        let mut said = String::new();
        for _ in 0..20 {
            self.send(request).unwrap();
            said = self.reply().unwrap();
            if !said.contains("ran for more than") {
                break;
            }
        }
        said
    }

    pub fn connect(at: &str) -> Client {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    pub fn send(&mut self, words: &[&str]) -> std::io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        self.stream.get_mut().write_all(bytes.as_bytes())
    }

    /// Sends requests that come together.
    pub fn send_all(&mut self, lines: &[String]) {
        let mut bytes = String::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            bytes += &format!("*{}\r\n", words.len());
            words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(bytes.as_bytes()).unwrap();
    }

    pub fn reply(&mut self) -> Said {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok().filter(|&n| n > 0)?;
        let line = line.trim_end().to_owned();
        let len = || line[1..].parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'$' if len() < 0 => Some("nil".into()),
            b'$' => {
                let mut bytes = vec![0; len() as usize + 2];
                self.stream.read_exact(&mut bytes).ok()?;
                bytes.truncate(bytes.len() - 2);
                Some(String::from_utf8_lossy(&bytes).into_owned())
            }
            b'*' if len() < 0 => Some(line),
            b'*' | b'%' | b'>' => {
                let items = len() << u32::from(line.starts_with('%'));
                let items: Option<Vec<String>> = (0..items).map(|_| self.reply()).collect();
                Some(format!("{}[{}]", if line.starts_with('>') { ">" } else { "" }, items?.join(" ")))
            }
            _ => Some(line),
        }
    }

    /// Whether a part of a reply has come.
    pub fn has_reply(&self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        !self.stream.buffer().is_empty() || peeked.is_ok()
    }

    pub fn ask(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.send(&words).unwrap();
        self.reply().expect("a reply")
    }
}
