//! Private servers for tests: started on free loopback ports with their data in a directory of their own, and gone with
//! the process that started them.

pub mod kafka;
