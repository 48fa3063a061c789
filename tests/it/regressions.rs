//! Holds the promise that what a fuzz target has found stays found: every file of
//! `fuzz/regressions` and `fuzz/corpus` goes through its target again.

use std::path::{Path, PathBuf};

use grace_hash_join::testing::fuzz::{self, Chain, Faults, Join, Scatter, SpillBytes, Target};

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    files.retain(|file| !file.file_name().is_some_and(is_hidden));
    files.sort();
    files
}

/// A published crate has no `fuzz`, and then nothing to replay; a checkout has inputs to replay.
fn replays<T: Target>() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    if !fuzz.exists() {
        return;
    }
    let corpus = files(&fuzz.join("corpus").join(T::NAME));
    assert!(!corpus.is_empty(), "no corpus of {}", T::NAME);
    let mut findings = Vec::new();
    for file in files(&fuzz.join("regressions").join(T::NAME))
        .iter()
        .chain(&corpus)
    {
        let bytes = read(file);
        if let Err(finding) = fuzz::replay(T::NAME, &bytes) {
            findings.push(format!("{}: {finding}", file.display()));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n\n"));
}

#[expect(
    clippy::disallowed_methods,
    reason = "an input of a test is no spill file"
)]
fn read(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap()
}

#[test]
fn what_the_fuzzer_found_in_joins_stays_right() {
    replays::<Join>();
}

#[test]
fn what_the_fuzzer_found_under_faults_stays_right() {
    replays::<Faults>();
}

#[test]
fn what_the_fuzzer_found_in_the_table_stays_right() {
    replays::<Chain>();
}

#[test]
fn what_the_fuzzer_found_in_scattering_stays_right() {
    replays::<Scatter>();
}

#[test]
fn what_the_fuzzer_found_in_damaged_spill_files_stays_right() {
    replays::<SpillBytes>();
}

#[test]
fn an_input_prints_a_test_and_the_empty_one_is_the_plainest() {
    let input = <Join as arbitrary::Arbitrary>::arbitrary(&mut arbitrary::Unstructured::new(&[]));
    let test = format!("{:?}", input.unwrap());
    assert!(test.contains("join_type: JoinType::Inner,"), "{test}");
    assert!(
        fuzz::replay("jion", &[])
            .unwrap_err()
            .contains("no target jion")
    );
}

/// Random bytes: what a fuzzer starts from. `FUZZ_RUNS` says how many inputs; those that fail are
/// written to the directory `FUZZ_FINDINGS`, if there is one.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "an input of a test is no spill file, and who asks for findings wants to read them"
)]
fn holds_for_random_inputs<T: Target>() {
    let mut rng = grace_hash_join::testing::Rng::new(7);
    let runs = std::env::var("FUZZ_RUNS").map_or(20, |runs| runs.parse().unwrap());
    for run in 0..runs {
        let bytes: Vec<u8> = (0..200).flat_map(|_| rng.bits().to_le_bytes()).collect();
        if let Err(finding) = fuzz::replay(T::NAME, &bytes) {
            if let Ok(directory) = std::env::var("FUZZ_FINDINGS") {
                std::fs::write(format!("{directory}/{}-{run}", T::NAME), &bytes).unwrap();
                println!("{run}: {finding}");
            } else {
                panic!("{run}: {finding}");
            }
        }
    }
}

#[test]
fn random_joins() {
    holds_for_random_inputs::<Join>();
}

#[test]
fn random_faults() {
    holds_for_random_inputs::<Faults>();
}

#[test]
fn random_chains() {
    holds_for_random_inputs::<Chain>();
}

#[test]
fn random_scatters() {
    holds_for_random_inputs::<Scatter>();
}

#[test]
fn random_spill_bytes() {
    holds_for_random_inputs::<SpillBytes>();
}
