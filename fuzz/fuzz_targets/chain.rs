#![no_main]
use grace_hash_join::testing::fuzz::Chain;
libfuzzer_sys::fuzz_target!(|input: Chain| grace_hash_join_fuzz::run(&input));
