//! `kill -9` in the middle of appends: acknowledged messages are stored once and in order (I3), and a batch is stored
//! entirely or not at all (I4).

use std::io::{BufRead, BufReader, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::actors::{Ack, ChildGuard, LoggedMessage, SeededRng, assert_healthy, line, read_log, seed};
use crate::harness::{World, on_each_store};
use crate::torture::{FaultCount, rounds};

const ROUNDS: u64 = 20;

#[test]
fn no_acknowledged_message_is_lost_when_the_writer_is_killed_at_a_random_time() {
    on_each_store(|world| {
        let mut rng = SeededRng::from_env();
        let session = seed(world);
        let mut log = read_log(world, &session);
        let mut count = FaultCount::new("kills of a writer");
        for round in 1..=rounds(ROUNDS) {
            let sent = messages(&mut rng, round);
            let acks = inject_and_kill(world, &session, &sent, &mut rng);
            log = check_round(world, &session, log, &sent, &acks);
            assert_healthy(world);
            count.add(acks.len());
        }
        count.print();
        world.add_messages(&session, &["u:the last"]);
        assert_eq!(world.texts(&session, None).len(), log.len() + 1);
        assert_eq!(read_log(world, &session)[..log.len()], log);
    });
}

fn messages(rng: &mut SeededRng, round: u64) -> Vec<String> {
    let (most, length) = [(200, 0), (200, 200), (20, 9_000)][rng.below(3) as usize];
    let count = 1 + rng.below(most);
    (1..=count).map(|number| format!("round {round} message {number} {}", rng.letters(length))).collect()
}

/// Sends messages to a process and kills it at a random time. Returns the acknowledgements.
fn inject_and_kill(world: &World, session: &str, sent: &[String], rng: &mut SeededRng) -> Vec<Ack> {
    let mut child = ChildGuard(world.spawn(&["inject", session, "--message", "-", "--json"]));
    let pause = Duration::from_micros([0, 0, 500][rng.below(3) as usize]);
    let writer = write_lines(child.0.stdin.take().unwrap(), sent, pause);
    let received = read_acks(child.0.stdout.take().unwrap());
    let mut acks: Vec<Ack> = Vec::new();
    if rng.below(4) == 0 {
        std::thread::sleep(Duration::from_micros(rng.below(40_000)));
    } else {
        let count = rng.below(sent.len() as u64) as usize;
        acks.extend(received.iter().take(count));
        std::thread::sleep(Duration::from_micros(rng.below(5_000)));
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    acks.extend(received.iter());
    drop(writer.join().unwrap());
    acks
}

/// Writes lines with or without pauses. Returns the open pipe, because the process exits when it is closed.
fn write_lines(mut stdin: ChildStdin, sent: &[String], pause: Duration) -> JoinHandle<ChildStdin> {
    let lines: Vec<String> = sent.iter().map(|text| line(text)).collect();
    std::thread::spawn(move || {
        for line in lines {
            if stdin.write_all(line.as_bytes()).is_err() {
                break;
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        stdin
    })
}

/// Reads acknowledgements. An incomplete last line does not count.
fn read_acks(stdout: impl std::io::Read + Send + 'static) -> Receiver<Ack> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        while stdout.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
            if sender.send(Ack::parse(&line)).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Checks that the log has its previous messages, then the acknowledged messages, then possibly other sent messages.
fn check_round(
    world: &World,
    session: &str,
    before: Vec<LoggedMessage>,
    sent: &[String],
    acks: &[Ack],
) -> Vec<LoggedMessage> {
    let log = read_log(world, session);
    assert!(log.len() >= before.len() + acks.len(), "some of {} acknowledged messages are lost", acks.len());
    assert_eq!(log[..before.len()], before);
    let new = &log[before.len()..];
    assert!(new.len() <= sent.len());
    for (message, text) in new.iter().zip(sent) {
        assert_eq!(message.text, *text);
    }
    for (message, ack) in new.iter().zip(acks) {
        assert_eq!(message.ack, *ack);
    }
    log
}
