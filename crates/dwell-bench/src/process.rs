//! Resource usage of this process.

use std::fs;

/// Resident memory of this process, in bytes.
pub fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// CPU time of all threads of this process, including those that have ended, in seconds.
pub fn processor_time() -> f64 {
    let passed = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    passed.tv_sec as f64 + passed.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_thread_that_has_ended_counts() {
        let before = processor_time();
        let work = || (0..5_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
        std::thread::spawn(work).join().unwrap();
        assert!(processor_time() > before);
        let ended = processor_time();
        std::thread::spawn(|| ()).join().unwrap();
        assert!(processor_time() >= ended);
    }
}
