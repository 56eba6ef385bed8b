//! `kill -9` in the middle of appends: acknowledged messages are stored once and in order (I3), and a batch is stored
//! entirely or not at all (I4).

use std::io::{BufRead, BufReader, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::actors::{Ack, Dice, Guarded, Said, assert_healthy, line, read_log, seed};
use crate::harness::{World, on_each_store};

const ROUNDS: u64 = 20;

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed_at_a_random_moment() {
    on_each_store(|world| {
        let mut dice = Dice::roll();
        let session = seed(world);
        let mut log = read_log(world, &session);
        for round in 1..=ROUNDS {
            let sent = messages(&mut dice, round);
            let acks = inject_and_kill(world, &session, &sent, &mut dice);
            log = check_round(world, &session, log, &sent, &acks);
            assert_healthy(world);
        }
        world.say(&session, &["u:the last"]);
        assert_eq!(world.texts(&session, None).len(), log.len() + 1);
        assert_eq!(read_log(world, &session)[..log.len()], log);
    });
}

fn messages(dice: &mut Dice, round: u64) -> Vec<String> {
    let (most, length) = [(200, 0), (200, 200), (20, 9_000)][dice.below(3) as usize];
    let count = 1 + dice.below(most);
    (1..=count).map(|number| format!("round {round} message {number} {}", dice.letters(length))).collect()
}

/// Feeds messages to a process and kills it, before its first acknowledgement or later. Returns the
/// acknowledgements.
fn inject_and_kill(world: &World, session: &str, sent: &[String], dice: &mut Dice) -> Vec<Ack> {
    let mut child = Guarded(world.spawn(&["inject", session, "--message", "-", "--json"]));
    let pause = Duration::from_micros([0, 0, 500][dice.below(3) as usize]);
    let feeder = feed(child.0.stdin.take().unwrap(), sent, pause);
    let heard = listen(child.0.stdout.take().unwrap());
    let mut acks: Vec<Ack> = Vec::new();
    if dice.below(4) == 0 {
        std::thread::sleep(Duration::from_micros(dice.below(40_000)));
    } else {
        let count = dice.below(sent.len() as u64) as usize;
        acks.extend(heard.iter().take(count));
        std::thread::sleep(Duration::from_micros(dice.below(5_000)));
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    acks.extend(heard.iter());
    drop(feeder.join().unwrap());
    acks
}

/// Writes lines with or without pauses. The pipe stays open so that the process does not exit by itself.
fn feed(mut stdin: ChildStdin, sent: &[String], pause: Duration) -> JoinHandle<ChildStdin> {
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
fn listen(stdout: impl std::io::Read + Send + 'static) -> Receiver<Ack> {
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

/// Checks that the log has its previous messages, then the acknowledged messages, then at most a few sent messages.
fn check_round(world: &World, session: &str, before: Vec<Said>, sent: &[String], acks: &[Ack]) -> Vec<Said> {
    let log = read_log(world, session);
    assert!(log.len() >= before.len() + acks.len(), "some of {} acknowledged messages are lost", acks.len());
    assert_eq!(log[..before.len()], before);
    let new = &log[before.len()..];
    assert!(new.len() <= sent.len());
    for (said, text) in new.iter().zip(sent) {
        assert_eq!(said.text, *text);
    }
    for (said, ack) in new.iter().zip(acks) {
        assert_eq!(said.ack, *ack);
    }
    log
}
