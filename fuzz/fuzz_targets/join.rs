#![no_main]
use grace_hash_join::testing::fuzz::Join;
libfuzzer_sys::fuzz_target!(|input: Join| grace_hash_join_fuzz::run(&input));
