//! Tables that are loaded through C lie where `span` says: where tables lie that are loaded with that span without C.

use std::ffi::CString;
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr;

use ::warprow_store::{
    CreateDrive, Device, DriveAddress, FormatConsent, FormatProposal, FormatSettings, LoadOptions, OpenOptions, Store,
    TableLoad,
};
use warprow_capi::*;
use warprow_layout::{ChunkSpread, DType, MapRun, TableSpec};
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions};

const ROWS: usize = 60_000;
const DIM: usize = 16;
/// The second finds some chunks taken.
const TABLES: [&str; 2] = ["t", "u"];

/// The rows of table number `nth`: no two rows are equal.
fn rows(nth: usize) -> Vec<f32> {
    (0..ROWS * DIM).map(|at| (at + nth) as f32).collect()
}

fn ok(status: warprow_status) {
    assert!(matches!(status, warprow_status::Ok));
}

/// Loads both tables through C.
fn load_through_c(address: &str, span: warprow_span) {
    let (address, span) = (CString::new(address).unwrap(), span as i32);
    let drives = [address.as_ptr()];
    let mut store = ptr::null_mut();
    let no_error = ptr::null_mut();
    // SAFETY: the address is a text, NULL options are the usual, and `store` takes a handle.
    ok(unsafe { warprow_store_format(WARPROW_ABI_VERSION, drives.as_ptr(), 1, ptr::null(), &mut store, no_error) });
    for (nth, name) in TABLES.into_iter().enumerate() {
        let (name, rows) = (CString::new(name).unwrap(), rows(nth));
        // SAFETY: zeros are a value of both.
        let (mut source, mut options): (warprow_table_source, warprow_load_options) = unsafe { std::mem::zeroed() };
        source.struct_size = size_of_val(&source);
        source.name = name.as_ptr();
        source.rows = ROWS as u64;
        source.dim = DIM as u32;
        source.dtype = warprow_dtype::F32 as i32;
        source.data = rows.as_ptr().cast();
        source.data_bytes = size_of_val(&rows[..]);
        options.struct_size = size_of_val(&options);
        options.span = span;
        let report = ptr::null_mut();
        // SAFETY: the handle is open; name and rows are there until the call returns.
        ok(unsafe { warprow_store_load(store, c"model".as_ptr(), &source, 1, &options, report, no_error) });
    }
    // SAFETY: the handle is open.
    ok(unsafe { warprow_store_close(store, no_error) });
}

/// Loads both tables without C.
fn load_directly(address: &str, span: ChunkSpread) {
    let address: DriveAddress = address.parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let format = FormatProposal::new(&[device], FormatSettings::default()).unwrap();
    let store = format.run(&FormatConsent::None, &mut |_, _| {}).unwrap();
    let mut options = LoadOptions::default();
    options.span = span;
    for (nth, name) in TABLES.into_iter().enumerate() {
        let spec = TableSpec::new(name, ROWS as u64, DIM as u32, DType::F32);
        let rows: Vec<u8> = rows(nth).into_iter().flat_map(f32::to_le_bytes).collect();
        let (rows, told) = (&rows[..], &mut |_| ControlFlow::Continue(()));
        store.load("model", &[TableLoad::new(&spec, &rows)], &options, told).unwrap();
    }
}

/// Compares every row of both tables, and returns what lies where on the drive.
fn placed(address: &str) -> Vec<MapRun> {
    let device = Device::open(&address.parse().unwrap(), CreateDrive::Never).unwrap();
    let store = Store::open(&[device], &OpenOptions::default()).unwrap();
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let ids: Vec<u64> = (0..ROWS as u64).collect();
    for (nth, name) in TABLES.into_iter().enumerate() {
        let plan = host.plan(&[Feature::new(name, name)], PlanOptions::default().with_max(ROWS, ROWS)).unwrap();
        let mut found = vec![0.0f32; ROWS * DIM];
        let mut output = Output::new(OutputRows::F32(&mut found), DIM);
        plan.slot().unwrap().lookup(&Batch::new(&ids, ROWS), &mut output).unwrap();
        assert!(found == rows(nth), "{name}");
    }
    let (mut drives, _) = store.map();
    drives.remove(0).runs
}

#[test]
fn tables_lie_where_the_span_says() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| format!("emulated:{}?size=96M", Path::join(folder.path(), path).display());
    let spans = [(warprow_span::Packed, ChunkSpread::Packed), (warprow_span::Whole, ChunkSpread::Whole)];
    let [packed, whole] = spans.map(|(of_c, span)| {
        let (through_c, directly) = (at(&format!("{span:?}.c")), at(&format!("{span:?}")));
        load_through_c(&through_c, of_c);
        load_directly(&directly, span);
        let runs = placed(&through_c);
        assert_eq!(runs, placed(&directly), "{span:?}");
        runs
    });
    // Tables that are packed lie in one piece; of those on the whole drive, every chunk has free ones beside it.
    assert!(packed.len() + 4 < whole.len(), "{packed:?} and {whole:?}");
}
