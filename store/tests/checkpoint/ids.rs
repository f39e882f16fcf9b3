use warprow_layout::DType;
use warprow_lookup::{
    Batch, BoundsCheck, Feature, HostExecutor, HostOptions, Ids, MissingPolicy, Output, OutputRows, PlanOptions,
};

use crate::files::{Tensor, checkpoint, folder, open, random_bytes};

/// Ids as engines have them: those of no row are zeros, and cost no read.
#[test]
fn ids_of_no_row_are_zeros_without_a_read() {
    let mut random = fastrand::Rng::with_seed(1);
    let bytes = random_bytes(&mut random, 70 * 160);
    let folder = folder();
    checkpoint(folder.path(), &[vec![Tensor::new("embed", "U8", &[70, 160], bytes.clone())]]);
    // A rank's rows alone: its ids are less 10.
    let store = open(folder.path(), "tensor=t=embed,scales=,rows=10..60");
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let options = PlanOptions::default()
        .with_max(8, 8)
        .with_out(DType::U8)
        .with_missing(MissingPolicy::Zero)
        .with_bounds(BoundsCheck::Ignore);
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let mut slot = plan.slot().unwrap();
    let mut look = |ids: Ids<'_>| {
        let mut rows = vec![7u8; ids.len() * 160];
        let mut output = Output::new(OutputRows::U8(&mut rows), 160);
        let report = slot.lookup(&Batch::new(ids, ids.len()), &mut output).unwrap();
        (rows, report)
    };
    let (rows, report) = look(Ids::I32(&[-1, 50, 1 << 30, i32::MIN, -1]));
    assert!(rows.iter().all(|&byte| byte == 0));
    assert_eq!((report.commands, report.padding, report.missing, report.bytes_read), (0, 5, 0, 0));
    for ids in [Ids::I32(&[3, -1, 49, 50]), Ids::I64(&[3, -1, 49, 1 << 40])] {
        let (rows, report) = look(ids);
        assert_eq!(rows[..160], bytes[13 * 160..][..160]);
        assert_eq!(rows[320..480], bytes[59 * 160..][..160]);
        assert!(rows[160..320].iter().chain(&rows[480..]).all(|&byte| byte == 0));
        assert_eq!((report.unique, report.padding), (2, 2));
    }
}
