use dwell::Event;

#[derive(Event)]
union Number {
    whole: u64,
    broken: f64,
}

fn main() {}
