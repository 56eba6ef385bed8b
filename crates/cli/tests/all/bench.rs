//! `sapwood bench` runs `sapwood-bench` from the directory of the binary or from PATH.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::harness::{CommandResult, World, finish};

/// A copy of the binary in a directory of its own, without `sapwood-bench`.
fn copy_binary(world: &World) -> PathBuf {
    let copy = world.path("bin/sapwood");
    std::fs::create_dir(world.path("bin")).unwrap();
    let binary = env!("CARGO_BIN_EXE_sapwood");
    std::fs::hard_link(binary, &copy).or_else(|_| std::fs::copy(binary, &copy).map(drop)).unwrap();
    copy
}

fn install_script(path: PathBuf) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(world: &World, binary: &PathBuf, args: &[&str]) -> CommandResult {
    let mut command = std::process::Command::new(binary);
    let path = format!("{}:/usr/bin:/bin", world.path("elsewhere").display());
    command.env("PATH", path).env("HOME", world.dir.path()).args(args);
    finish(command)
}

#[test]
fn the_benchmark_program_gets_the_arguments_and_gives_the_exit_code() {
    for place in ["bin/sapwood-bench", "elsewhere/sapwood-bench"] {
        let world = World::new("sqlite");
        let binary = copy_binary(&world);
        install_script(world.path(place));
        let result = run(&world, &binary, &["bench", "--quick", "append", "--dir", "/var/tmp"]);
        assert_eq!((result.status, result.out().as_str()), (Some(7), "--quick append --dir /var/tmp\n"));
        let result = run(&world, &binary, &["--json", "bench", "--help"]);
        assert_eq!(result.out(), "--help --json\n", "{place}");
    }
}

#[test]
fn without_the_benchmark_program_the_error_says_how_to_build_it() {
    let world = World::new("sqlite");
    let binary = copy_binary(&world);
    let error = run(&world, &binary, &["bench", "--quick", "--json"]).error();
    assert_eq!(error["code"], "bench.missing");
    assert!(error["hint"].as_str().unwrap().contains("cargo build --release -p sapwood-bench"), "{error}");
}
