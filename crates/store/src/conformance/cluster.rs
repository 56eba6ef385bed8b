//! A PostgreSQL server for the tests: a throwaway cluster in its own directory, on a free loopback port, with
//! `fsync` on. It is created once per test binary and removed when the binary ends, even after a crash: a
//! shell waits for the end of its standard input, which only this process keeps open.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// PostgreSQL refuses to run as root. Debian's package creates this user.
const USER: &str = "postgres";
/// Superuser of the cluster.
pub const ADMIN: &str = "sapwood";
const START_MAX: Duration = Duration::from_secs(120);
/// Below the ephemeral port range, so that no outgoing connection uses the port of a stopped
/// server.
const PORTS: std::ops::Range<u16> = 15_000..30_000;

pub struct Cluster {
    dir: PathBuf,
    pub port: u16,
    server: Mutex<Option<Child>>,
    databases: AtomicU32,
    /// The cleanup shell waits while this pipe is open.
    _alive: ChildStdin,
}

/// Return the cluster shared by this test binary.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(Cluster::start)
}

impl Cluster {
    pub fn start() -> Self {
        let cluster = Self::prepare();
        let data = cluster.data();
        cluster.run(
            "initdb",
            &["-D", &data, "-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        );
        cluster.resume();
        cluster
    }

    /// Create a standby that streams from another cluster. `resume` starts it.
    pub fn standby_of(primary: &Cluster) -> Self {
        let cluster = Self::prepare();
        let (data, port) = (cluster.data(), primary.port.to_string());
        let from = [
            "-D",
            &data,
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            ADMIN,
            "-R",
            "-X",
            "stream",
            "--no-sync",
            "-c",
            "fast",
        ];
        cluster.run("pg_basebackup", &from);
        cluster
    }

    fn prepare() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sapwood-pg-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        if is_root() {
            assert!(Command::new("chown").arg(USER).arg(&dir).status().unwrap().success());
        }
        let alive = clean_up_afterwards(&dir);
        Self { dir, port: free_port(), server: Mutex::default(), databases: AtomicU32::new(0), _alive: alive }
    }

    fn data(&self) -> String {
        self.dir.join("data").display().to_string()
    }

    /// Build the command for a PostgreSQL program, run as a user that PostgreSQL accepts.
    pub fn command(&self, program: &str) -> Command {
        let path = bin_dir().join(program);
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(path);
                command
            }
            false => Command::new(path),
        };
        // psql reads certificates from HOME, and may run as another user.
        command.current_dir(&self.dir).env("HOME", &self.dir).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program).args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Write a file next to the data directory that only the server's user can read, and return its path.
    pub fn put_file(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        if is_root() {
            assert!(Command::new("chown").arg(USER).arg(&path).status().unwrap().success());
        }
        path.display().to_string()
    }

    /// Change settings that the server can reload while it runs.
    pub fn configure(&self, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            self.sql("postgres", &format!("ALTER SYSTEM SET {name} = '{value}'"));
        }
        self.sql("postgres", "SELECT pg_reload_conf()");
    }

    /// Start the server, for the first time or after a stop.
    pub fn resume(&self) {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let mut server = self.command("postgres");
        server.args([
            "-D",
            &self.data(),
            "-p",
            &self.port.to_string(),
            "-k",
            &self.dir.display().to_string(),
        ]);
        for setting in ["listen_addresses=127.0.0.1", "fsync=on", "max_connections=300", "wal_level=replica"]
        {
            server.args(["-c", setting]);
        }
        *self.server.lock().unwrap() =
            Some(server.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        let until = Instant::now() + START_MAX;
        while !self.is_ready() {
            assert!(
                Instant::now() < until,
                "the server did not start: {}",
                std::fs::read_to_string(self.dir.join("log")).unwrap()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_ready(&self) -> bool {
        let port = self.port.to_string();
        self.command("pg_isready")
            .args(["-h", "127.0.0.1", "-p", &port, "-q"])
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Kill the server, like a power cut. The next start recovers from its write-ahead log.
    pub fn crash(&self) {
        self.run("pg_ctl", &["-D", &self.data(), "stop", "-m", "immediate", "-w"]);
        if let Some(mut server) = self.server.lock().unwrap().take() {
            server.wait().unwrap();
        }
    }

    pub fn promote(&self) {
        self.run("pg_ctl", &["-D", &self.data(), "promote", "-w"]);
    }

    /// Run SQL as the superuser, and return its output.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let port = self.port.to_string();
        self.run(
            "psql",
            &[
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                ADMIN,
                "-d",
                database,
                "-X",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                sql,
            ],
        )
    }

    /// Create an empty database, and return its URL.
    pub fn new_database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url_of(ADMIN, &name)
    }

    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.lock().unwrap().take() {
            let _ = self.command("pg_ctl").args(["-D", &self.data(), "stop", "-m", "immediate"]).output();
            let _ = server.wait();
        }
    }
}

/// Find a port that is not in use. Each process starts its search at a different port.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(97);
    let candidates = (0..count).map(|_| {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        PORTS.start + u16::try_from(number).unwrap_or(0)
    });
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.into_iter().find(is_free).expect("no free port")
}

fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n"))
}

/// The directory of the newest installed PostgreSQL version.
fn bin_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut found: Vec<(u32, PathBuf)> = versions
            .filter_map(|version| {
                Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin")))
            })
            .filter(|(_, bin)| bin.join("initdb").exists())
            .collect();
        found.sort();
        found.pop().map_or_else(PathBuf::new, |(_, bin)| bin)
    })
}

/// Start a shell that waits until this process ends, then stops the server and removes the directory. The
/// shell outlives this process, so it is never waited for.
#[allow(clippy::zombie_processes)]
fn clean_up_afterwards(dir: &Path) -> ChildStdin {
    let script = r#"read -r _
        server=$(head -n 1 "$0/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$server"
        for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$server" 2>/dev/null || break; sleep 0.3; done
        rm -rf "$0""#;
    let mut shell = Command::new("setsid")
        .args(["sh", "-c", script])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap()
}
