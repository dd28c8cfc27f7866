//! What the first access to a page after clear and flush costs can be measured without rights; `benches/goals.rs` judges
//! how well.

use varve_sys::first_access_time;

#[test]
fn it_can_be_measured() {
    let said = first_access_time();
    assert!(said.is_ok(), "{said:?}");
}
