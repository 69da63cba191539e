fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    for seed in args[0]..args[0] + args[1] {
        let report = dwell_simulation::run(seed, dwell_simulation::Options::default());
        if let Some(v) = &report.violation {
            println!("seed {seed}: {v}");
            if args.len() > 2 {
                if args[2] == 0 { for e in dwell_simulation::trace::of_message(&report.trace, &v.id) { println!("{e}"); } }
                else { for e in &report.trace { println!("{e}"); } }
            }
        } else if args.len() > 2 { println!("seed {seed} ok {} events {}", report.trace.len(), report.tally); 
                if args[2] == 2 { for e in &report.trace { println!("{e}"); } } }
    }
}
