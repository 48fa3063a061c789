//! What all fuzz targets share: a bound on memory, and how a finding is told.

use std::alloc::{GlobalAlloc, Layout, System};

use grace_hash_join::testing::fuzz::{self, Target};

/// The most bytes of one allocation: inputs are small, so what asks for more believes a number that
/// it should have doubted. Some decoders' windows take 8 MiB.
const MOST_BYTES: usize = 64 << 20;

struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

// SAFETY: forwards to the system's allocator, or gives null, which means that there is no memory.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > MOST_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs one input.
///
/// # Panics
/// If something is wrong, with a test to paste.
pub fn run(input: &impl Target) {
    if let Err(finding) = fuzz::run(input) {
        panic!("{finding}");
    }
}
