//! Which resident buckets go to disk. Pure: numbers in, numbers out.

/// The buckets to give up, largest first, until `needed` bytes are free; all of them if they are
/// not enough. `sizes` holds the bytes of each resident bucket, `None` for a spilled one.
pub(crate) fn choose(sizes: &[Option<usize>], needed: usize) -> Vec<usize> {
    let mut resident: Vec<(usize, usize)> = sizes
        .iter()
        .enumerate()
        .filter_map(|(bucket, bytes)| bytes.filter(|b| *b > 0).map(|b| (b, bucket)))
        .collect();
    resident.sort_unstable_by(|a, b| b.cmp(a));
    let mut freed = 0;
    let mut victims = Vec::new();
    for (bytes, bucket) in resident {
        if freed >= needed {
            break;
        }
        freed += bytes;
        victims.push(bucket);
    }
    victims
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn the_largest_go_first_and_no_more_than_needed() {
        let sizes = [Some(10), None, Some(30), Some(20), Some(0)];
        assert_eq!(choose(&sizes, 1), [2]);
        assert_eq!(choose(&sizes, 31), [2, 3]);
        assert_eq!(choose(&sizes, 1000), [2, 3, 0]);
        assert_eq!(choose(&sizes, 0), [0_usize; 0]);
        assert_eq!(choose(&[None, Some(0)], 5), [0_usize; 0]);
    }
}
