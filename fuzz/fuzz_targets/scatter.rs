#![no_main]
use grace_hash_join::testing::fuzz::Scatter;
libfuzzer_sys::fuzz_target!(|input: Scatter| grace_hash_join_fuzz::run(&input));
