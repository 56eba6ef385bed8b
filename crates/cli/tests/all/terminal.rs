//! Runs the binary in a real terminal: tmux draws its output and sends keystrokes.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::harness::World;

/// Deadline for every wait, generous because the machine may be busy with other tests.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(30);

pub struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Runs `sapwood` with these arguments in a window of 90 columns and 40 rows.
    pub fn open(world: &World, args: &[&str]) -> Self {
        Self::open_with(world, args, &[])
    }

    pub fn open_with(world: &World, args: &[&str], env: &[(&str, &str)]) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let config = world.path("tmux.conf");
        std::fs::write(
            &config,
            "set -g remain-on-exit on\nset -sg escape-time 0\nset -g history-limit 5000\n",
        )
        .unwrap();
        let terminal = Self { socket: world.path(&format!("tmux-{number}.sock")) };
        let home = world.dir.path().display().to_string();
        let mut line = vec!["env".to_owned()];
        line.extend(["SAPWOOD_HOME", "SAPWOOD_STORE", "NO_COLOR"].map(|name| format!("-u{name}")));
        line.extend([format!("HOME={home}"), "USER=tester".to_owned()]);
        line.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
        line.extend([env!("CARGO_BIN_EXE_sapwood"), "--store", &world.url].map(str::to_owned));
        line.extend(args.iter().map(|arg| (*arg).to_owned()));
        let config = config.display().to_string();
        let mut tmux_args =
            vec!["-f", &config, "new-session", "-d", "-x", "90", "-y", "40", "-c", &home, "--"];
        tmux_args.extend(line.iter().map(String::as_str));
        terminal.tmux(&tmux_args);
        terminal
    }

    fn tmux(&self, tmux_args: &[&str]) -> Output {
        let output =
            Command::new("tmux").arg("-u").arg("-S").arg(&self.socket).args(tmux_args).output().unwrap();
        assert!(output.status.success(), "tmux {tmux_args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Types text literally.
    pub fn write(&self, text: &str) -> &Self {
        self.tmux(&["send-keys", "-l", "--", text]);
        self
    }

    /// Presses a key by its tmux name: `Enter`, `C-c`, `M-Enter`.
    pub fn press(&self, key: &str) -> &Self {
        self.tmux(&["send-keys", key]);
        self
    }

    /// Waits for the prompt, then types a line and presses Enter.
    pub fn send_line(&self, text: &str) -> &Self {
        self.wait_for_prompt();
        self.write(text).press("Enter")
    }

    pub fn paste(&self, text: &str) -> &Self {
        self.tmux(&["set-buffer", "--", text]);
        self.tmux(&["paste-buffer", "-p"]);
        self
    }

    /// Returns the content of the screen, including the scrollback.
    pub fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p", "-S", "-"]);
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until the last line of the screen is an empty prompt.
    pub fn wait_for_prompt(&self) -> String {
        self.wait_until("an empty prompt", |screen| {
            let last = screen.lines().last().unwrap_or_default().trim_end();
            last == "›" || last == ">"
        })
    }

    pub fn wait_until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if condition(&screen) {
                return screen;
            }
            assert!(began.elapsed() < DEADLINE, "timed out waiting for {what}:\n{screen}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the program has ended. Its exit status is not checked because tmux sometimes loses it.
    pub fn wait_for_end(&self) {
        self.wait_until("the end", |_| {
            let output = self.tmux(&["display-message", "-p", "#{pane_dead}"]);
            String::from_utf8_lossy(&output.stdout).trim() == "1"
        });
    }

    /// Presses Ctrl-D until the program ends. It repeats the key, because a key pressed between two prompts is lost.
    pub fn press_ctrl_d_until_end(&self) {
        self.wait_until("the end", |_| {
            let output = self.tmux(&["display-message", "-p", "#{pane_dead}"]);
            let has_ended = String::from_utf8_lossy(&output.stdout).trim() == "1";
            if !has_ended {
                self.press("C-d");
                std::thread::sleep(POLL_INTERVAL * 10);
            }
            has_ended
        });
    }

    /// Kills the program with `kill -9`.
    pub fn kill(&self) {
        let output = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let pid = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        self.wait_for_end();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}
