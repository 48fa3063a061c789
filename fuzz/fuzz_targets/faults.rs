#![no_main]
use grace_hash_join::testing::fuzz::Faults;
libfuzzer_sys::fuzz_target!(|input: Faults| grace_hash_join_fuzz::run(&input));
