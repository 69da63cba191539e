//! The commands as a person runs them, on a small workspace of the same shape as the real one.

mod fixture;

use fixture::Fixture;

const STEPS: u64 = 13;
const COLUMNS: u64 = 12;
/// The transports on which workers are killed.
const KILLED: usize = 5;

#[test]
fn tests_are_counted_over_all_steps_and_what_is_left_out_is_skipped() {
    let fixture = Fixture::new("counted");
    let ran = fixture.xtask("test --install --only unit,log");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(ran.stderr.contains("installing abacus for build,redis,kafka"), "{}", ran.all());
    // Unit: 4 passed (the namesake of a column and the one without Kafka among them, the kills
    // not), 1 ignored. The column log: 2 passed, 1 skipped. The other columns and all other steps:
    // skipped.
    assert_eq!(
        ran.last_line(),
        format!("6 passed, 0 failed, {} skipped", 2 + COLUMNS - 1 + STEPS - 2),
        "{}",
        ran.all()
    );
    assert!(ran.stdout.contains("memory is left out by name"), "{}", ran.all());
}

#[test]
fn what_is_missing_is_said_in_one_line_before_anything_runs() {
    let fixture = Fixture::new("missing");
    let ran = fixture.xtask_with("test --only format", &[("FIXTURE_LACKS", "1")]);
    assert_eq!(ran.code, 1, "{}", ran.all());
    let said = "error: missing: abacus. As root, run `apt-get install abacus`";
    assert_eq!(ran.stderr.lines().last(), Some(said), "{}", ran.all());
    assert!(!ran.stdout.contains("format"), "{}", ran.all());
}

#[test]
fn a_failed_step_shows_why_and_the_rest_still_runs() {
    let fixture = Fixture::new("failed");
    fixture.column("memory", &[("ack removes", "fail"), ("release returns", "pass")]);
    let ran = fixture.xtask_with("test --only unit,memory,licences", &[("FIXTURE_FAILS", "1")]);
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stdout.contains("asked to fail"), "{}", ran.all());
    assert!(ran.stdout.contains("memory: ack removes"), "{}", ran.all());
    // There is no deny.toml in this workspace.
    assert!(ran.stdout.contains("cannot read the allowed licences"), "{}", ran.all());
    assert_eq!(
        ran.last_line(),
        format!("4 passed, 3 failed, {} skipped", 1 + COLUMNS - 1 + STEPS - 3),
        "{}",
        ran.all()
    );
    assert!(fixture.read("target/xtask/logs/unit.log").contains("asked to fail"));
}

#[test]
fn a_quick_run_leaves_the_benchmarks_out_and_asks_for_fewer_seeds() {
    let fixture = Fixture::new("quick");
    let ran = fixture.xtask("test --quick --only simulation,bench-smoke,tour");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(ran.stdout.contains("--seeds 100 --from"), "{}", ran.all());
    assert!(ran.stdout.contains("left out by --quick"), "{}", ran.all());
    assert!(ran.stdout.contains("never early"), "{}", ran.all());
    assert_eq!(ran.last_line(), format!("2 passed, 0 failed, {} skipped", STEPS - 2), "{}", ran.all());
}

#[test]
fn every_example_is_run_and_counted() {
    let fixture = Fixture::new("examples");
    // On each server, which is started for them, and there as well as on both brokers that need
    // none.
    let ran = fixture.xtask("test --only examples");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(ran.stdout.contains("blocking-handlers, first-program, observability"), "{}", ran.all());
    assert!(ran.stdout.contains("on kafka://: blocking-handlers, first-program"), "{}", ran.all());
    assert_eq!(ran.last_line(), format!("12 passed, 0 failed, {} skipped", STEPS - 1), "{}", ran.all());

    // A server that is left out, and one that nothing needs in a quick run.
    for (command, passed, left_out) in
        [("test --only examples --skip kafka", 9, 1), ("test --only examples --quick", 6, 2)]
    {
        let ran = fixture.xtask(command);
        let expected = format!("{passed} passed, 0 failed, {} skipped", STEPS - 1 + left_out);
        assert_eq!(ran.last_line(), expected, "{}", ran.all());
    }

    fixture.write("examples/first-program.rs", "fn main() { panic!(\"nobody is there\") }\n");
    let ran = fixture.xtask("test --only examples --quick");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stdout.contains("nobody is there"), "{}", ran.all());
    assert_eq!(ran.last_line(), format!("4 passed, 2 failed, {} skipped", STEPS + 1), "{}", ran.all());
}

#[test]
fn the_matrix_shows_each_column_and_the_exit_code_tells_of_failures() {
    let fixture = Fixture::new("matrix");
    let ran = fixture.xtask("conformance memory,log");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(ran.stdout.contains("  ack removes      ✓       ✓\n"), "{}", ran.all());
    assert!(ran.stdout.contains("  release returns  ✓       refused\n"), "{}", ran.all());
    assert!(ran.stdout.contains("  kill                     skipped\n"), "{}", ran.all());

    let ran = fixture.xtask("conformance log --json");
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 3), "{}", ran.all());
    assert!(ran.stdout.starts_with(r#"{"transport":"log","case":"ack removes""#), "{}", ran.all());

    fixture.column("log", &[("ack removes", "fail")]);
    let ran = fixture.xtask("conformance memory,log");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stdout.contains("FAIL log: ack removes\n  seen\n"), "{}", ran.all());
}

#[test]
fn a_column_or_step_that_does_not_exist_is_refused() {
    let fixture = Fixture::new("refused");
    for arguments in [
        "conformance rabbit",
        "test --only rabbit",
        "test --skip unit,rabbit",
        "bench rabbit",
        "faults rabbit --kills 1",
    ] {
        let ran = fixture.xtask(arguments);
        assert_eq!(ran.code, 2, "{}", ran.all());
        assert!(ran.stderr.contains("possible values"), "{}", ran.all());
    }
}

#[test]
fn a_missing_target_is_named() {
    let fixture = Fixture::new("missing");
    fixture.write(
        "crates/dwell-conformance/Cargo.toml",
        "[package]\nname = 'dwell-conformance'\nautotests = false\n",
    );
    let ran = fixture.xtask("conformance memory");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stderr.contains("has no test target `memory`"), "{}", ran.all());
}

#[test]
fn benchmarks_are_shown_as_tables_or_passed_through() {
    let fixture = Fixture::new("bench");
    let ran = fixture.xtask("bench core --smoke");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(ran.stdout.contains("wheel  insert  2,500,000  2,000,000   1.25  /s\n"), "{}", ran.all());
    assert!(ran.stdout.contains("engine  late      0.50      1.50         2      0\n"), "{}", ran.all());

    let ran = fixture.xtask("bench --json");
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 8), "{}", ran.all());
}

#[test]
fn a_simulation_passes_its_words_and_exit_code_through() {
    let fixture = Fixture::new("simulation");
    let ran = fixture.xtask("simulate --seeds 5 --from 13");
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "--seeds 5 --from 13\n"), "{}", ran.all());
}

#[test]
fn kills_are_shown_as_a_table_and_what_was_lost_fails() {
    let fixture = Fixture::new("kills");
    let ran = fixture.xtask("faults sqlite --kills 3");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(
        ran.stdout.contains("sqlite         3  1,234   2,000    1,800    80        118       2"),
        "{}",
        ran.all()
    );

    let ran = fixture.xtask("faults --kills 3 --seed 77 --json");
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, KILLED), "{}", ran.all());
    assert!(ran.stdout.contains(r#""seed":77"#), "{}", ran.all());

    let ran = fixture.xtask("test --only sqlite");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(ran.stdout.contains("sqlite: 5 kills, 1,234 sent"), "{}", ran.all());
    let skipped = COLUMNS - 1 + STEPS - 2 + KILLED as u64 - 1;
    assert_eq!(ran.last_line(), format!("2 passed, 0 failed, {skipped} skipped"), "{}", ran.all());

    fixture.kills(2);
    let ran = fixture.xtask("faults --kills 3");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(
        ran.stdout.contains("sqlite: 2 lost, 0 early, 0 unexplained, 0 broken (seed 9)"),
        "{}",
        ran.all()
    );
    assert!(ran.stdout.contains("lost p0-1-7: never came to an end"), "{}", ran.all());
    let ran = fixture.xtask("test --only faults");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.last_line().starts_with("4 passed, 1 failed"), "{}", ran.all());
}

#[test]
fn generated_blocks_are_written_and_drift_is_found() {
    let fixture = Fixture::new("docs");
    fixture.write("README.md", "# Title\n\n<!-- generated: capabilities -->\nold\n<!-- end -->\n");
    let ran = fixture.xtask("docs --check");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stderr.contains("README.md is not up to date"), "{}", ran.all());
    assert!(fixture.read("README.md").contains("\nold\n"));

    let ran = fixture.xtask("docs");
    assert_eq!(ran.code, 0, "{}", ran.all());
    assert!(
        fixture
            .read("README.md")
            .contains("-->\n\n| transport | delay |\n|---|---|\n| memory | native |\n\n<!--")
    );
    assert_eq!(fixture.xtask("docs --check").code, 0);

    fixture.write("docs/more.md", "[gone](gone.md)\n");
    let ran = fixture.xtask("docs --check");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stderr.contains("docs/more.md:1: the link `gone.md` leads nowhere"), "{}", ran.all());
}

#[test]
fn a_page_shows_a_program_as_it_stands_in_its_file() {
    let fixture = Fixture::new("programs");
    fixture.write("examples/first.rs", "fn main() {}\n");
    fixture.write("README.md", "<!-- generated: program examples/first.rs -->\n<!-- end -->\n");
    assert_eq!(fixture.xtask("docs").code, 0);
    assert!(fixture.read("README.md").contains("-->\n\n```rust\nfn main() {}\n```\n\n<!--"));

    fixture.write("examples/first.rs", "fn main() { println!(); }\n");
    let ran = fixture.xtask("docs --check");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stderr.contains("README.md is not up to date"), "{}", ran.all());

    fixture.write("README.md", "<!-- generated: program examples/gone.rs -->\n<!-- end -->\n");
    let ran = fixture.xtask("docs");
    assert_eq!(ran.code, 1, "{}", ran.all());
    assert!(ran.stderr.contains("README.md:1: cannot read the program"), "{}", ran.all());
}

#[test]
fn a_server_runs_from_up_to_down_and_is_shown_meanwhile() {
    let fixture = Fixture::new("services");
    let up = fixture.xtask("services up kafka");
    assert_eq!((up.code, up.last_line()), (0, "kafka: kafka://127.0.0.1:1"), "{}", up.all());
    assert!(up.stderr.contains("installing abacus for kafka"), "{}", up.all());
    // It runs already.
    assert_eq!(fixture.xtask("services up kafka").last_line(), up.last_line());
    let status = fixture.xtask("services status");
    assert_eq!(
        status.stdout.lines().collect::<Vec<_>>(),
        ["redis: stopped", "redis-cluster: stopped", "kafka: kafka://127.0.0.1:1"],
        "{}",
        status.all()
    );
    let env = fixture.xtask("services env");
    assert_eq!(env.stdout, "export DWELL_TEST_KAFKA_URL=kafka://127.0.0.1:1\n", "{}", env.all());
    assert_eq!(fixture.xtask("services down").code, 0);
    let status = fixture.xtask("services status");
    assert_eq!(status.last_line(), "kafka: stopped", "{}", status.all());
}
