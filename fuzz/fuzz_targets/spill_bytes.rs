#![no_main]
use grace_hash_join::testing::fuzz::SpillBytes;
libfuzzer_sys::fuzz_target!(|input: SpillBytes| grace_hash_join_fuzz::run(&input));
