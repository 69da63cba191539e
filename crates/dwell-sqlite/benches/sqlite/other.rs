use crate::{Scale, output::Output};
pub(crate) async fn run(_: &Output, _: &Scale) {}
