//! The table of functions for PyTorch's operators, called as the library of operators calls it: without Python, by texts.

use std::ffi::CString;
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr::{null, null_mut};

use warprow_modules::operators::{
    OPERATORS, OPERATORS_VERSION, OperatorBatch, OperatorOutput, OperatorShape, OperatorTensor, element, take_error,
};
use warprow_modules::{ModuleError, ModuleLookup};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, StoreError,
    TableLoad, TableSpec,
};

const ROWS: u64 = 1000;
const DIM: usize = 4;

fn element_at(row: i64, column: usize) -> f32 {
    row as f32 + column as f32 / 8.0
}

/// Makes a store in a file, with the table "user".
fn make(path: &Path) {
    let address = format!("emulated:{},size=64M", path.display());
    let device = Device::open(&address.parse().unwrap(), CreateDrive::IfMissing).unwrap();
    let proposal = FormatProposal::new(&[device], FormatSettings::default()).unwrap();
    let store: Store = proposal.run(&FormatConsent::None, &mut |_, _| {}).unwrap();
    let rows: Vec<u8> =
        (0..ROWS as i64).flat_map(|row| (0..DIM).flat_map(move |at| element_at(row, at).to_le_bytes())).collect();
    let (spec, source) = (TableSpec::new("user", ROWS, DIM as u32, DType::F32), &rows[..]);
    let load = TableLoad::new(&spec, &source);
    store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
}

fn text(drive: &str, pooling: &str, rows: u64, more: &str) -> String {
    format!(
        r#"{{"device":"cpu","drives":["{drive}"],"features":[{{"name":"user","padding":null,"pooling":"{pooling}","table":"user","weighted":false}}],
        "generation":1,"has_last":false,"mask":"found","max_ids":null,"missing":"error","on_failure":"raise","options":{{"adopting":false,
        "check_keys":false,"check_rows":false,"dram_bytes":1024,"hbm_bytes":0,"overlay_bytes":0,"timeout":null}},"out":"f32","prefetch":0,
        "shapes":[[{rows},{DIM}]]{more}}}"#
    )
}

fn tensor<T>(of: &[T], element: u32) -> OperatorTensor {
    let (count, first) = (of.len() as u64, of.len() as u64);
    let data = of.as_ptr().cast();
    OperatorTensor { data, count, first, dims: 1, element, device: -1, is_there: 1, element_name: c"int16".as_ptr() }
}

fn nothing() -> OperatorTensor {
    let (count, first) = (0, 0);
    OperatorTensor { data: null(), count, first, dims: 0, element: 0, device: -1, is_there: 0, element_name: null() }
}

fn batch(ids: &[i64]) -> OperatorBatch {
    let (offsets, weights) = (nothing(), nothing());
    OperatorBatch { ids: tensor(ids, element::I64), offsets, weights, weights_fit: 0, masked: 0 }
}

fn message() -> String {
    // SAFETY: the text is this thread's, which makes no call meanwhile.
    unsafe { std::ffi::CStr::from_ptr((OPERATORS.message)()) }.to_str().unwrap().to_owned()
}

/// A look-up that is held.
struct Found(*const ModuleLookup);

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: it was found, and is released once.
        unsafe { (OPERATORS.release)(self.0) };
    }
}

fn find(text: &str) -> Result<Found, String> {
    let mut found = null();
    // SAFETY: a text of that length, and a place.
    match unsafe { (OPERATORS.find)(text.as_ptr().cast(), text.len(), &mut found) } {
        0 => Ok(Found(found)),
        _ => Err(message()),
    }
}

impl Found {
    fn shape(&self, batch: &OperatorBatch) -> Result<OperatorShape, String> {
        let mut shape = OperatorShape::default();
        // SAFETY: the look-up is held, and there is a place.
        match unsafe { (OPERATORS.shape)(self.0, batch, &mut shape) } {
            0 => Ok(shape),
            _ => Err(message()),
        }
    }

    fn lookup(&self, batch: &OperatorBatch) -> Result<Vec<f32>, String> {
        let shape = self.shape(batch)?;
        let mut rows = vec![f32::NAN; (shape.rows * shape.width) as usize];
        let output = OperatorOutput { rows: rows.as_mut_ptr().cast(), mask: null_mut(), stream: null_mut() };
        // SAFETY: the output is as large as `shape` said.
        match unsafe { (OPERATORS.lookup)(self.0, batch, &output) } {
            0 => Ok(rows),
            _ => Err(message()),
        }
    }
}

fn rows_of(ids: &[i64]) -> Vec<f32> {
    ids.iter().flat_map(|&row| (0..DIM).map(move |at| element_at(row, at))).collect()
}

/// One test: stores that texts open belong to the process.
#[test]
fn a_text_leads_to_its_rows() {
    assert_eq!((OPERATORS.version, OPERATORS.struct_size), (OPERATORS_VERSION, size_of_val(&OPERATORS)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.drive");
    make(&path);
    let there = format!("emulated:{}", path.display());
    let elsewhere = "emulated:/no/such/folder/b.drive";

    // A model from another machine.
    let error = find(&text(elsewhere, "none", ROWS, "")).map(|_| ()).unwrap_err();
    assert!(error.contains("b.drive"), "{error}");
    assert!(matches!(take_error(), Some(ModuleError::Store(_))));
    assert!(take_error().is_none(), "an error is taken once");
    let (from, to) = (CString::new(elsewhere).unwrap(), CString::new(there.as_str()).unwrap());
    // SAFETY: both are texts.
    assert_eq!(unsafe { (OPERATORS.rename_drive)(from.as_ptr(), to.as_ptr()) }, 0);

    // Rows in memory and on the drive; then more than the plan had room for at first.
    let rows = find(&text(elsewhere, "none", ROWS, "")).unwrap();
    for count in [1, 300, 20_000] {
        let ids: Vec<i64> = (0..count).map(|at| at * 7919 % ROWS as i64).collect();
        assert_eq!(rows.lookup(&batch(&ids)).unwrap(), rows_of(&ids));
    }
    let narrow: Vec<i32> = (0..50).collect();
    let given = OperatorBatch { ids: tensor(&narrow, element::I32), ..batch(&[]) };
    assert_eq!(rows.lookup(&given).unwrap(), rows_of(&(0..50).collect::<Vec<_>>()));

    // Bags, by another text over the same store.
    let sums = find(&text(elsewhere, "sum", ROWS, "")).unwrap();
    let (ids, offsets) = ([1i64, 2, 3], [0i64, 2]);
    let bags = OperatorBatch { offsets: tensor(&offsets, element::I64), ..batch(&ids) };
    let expected: Vec<f32> = (0..DIM).map(|at| element_at(1, at) + element_at(2, at)).chain(rows_of(&[3])).collect();
    assert_eq!(sums.lookup(&bags).unwrap(), expected);

    // The same text leads to the same look-up, for threads too.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let again = find(&text(elsewhere, "none", ROWS, "")).unwrap();
                let ids: Vec<i64> = (0..500).collect();
                (0..20).for_each(|_| assert_eq!(again.lookup(&batch(&ids)).unwrap(), rows_of(&ids)));
            });
        }
    });

    // What is wrong is told by its argument.
    let weights = [1.0f32; 3];
    let floats = tensor(&weights, element::F32);
    let shifted = |it: OperatorTensor| OperatorTensor { data: it.data.wrapping_byte_add(1), ..it };
    for (given, word) in [
        (OperatorBatch { ids: floats, ..batch(&[]) }, "input: elements of type"),
        (OperatorBatch { ids: OperatorTensor { device: 1, ..tensor(&ids, element::I64) }, ..bags }, "cuda:1"),
        (OperatorBatch { offsets: floats, ..bags }, "offsets"),
        (OperatorBatch { offsets: OperatorTensor { dims: 2, ..bags.offsets }, ..bags }, "offsets: 2 dimensions"),
        (OperatorBatch { ids: shifted(bags.ids), ..bags }, "input: a tensor at"),
        (OperatorBatch { offsets: shifted(bags.offsets), ..bags }, "offsets: a tensor at"),
        (OperatorBatch { weights: shifted(floats), weights_fit: 1, ..bags }, "per_sample_weights: a tensor at"),
        (OperatorBatch { weights: floats, weights_fit: 1, ..bags }, "per_sample_weights"),
        (OperatorBatch { masked: 1, ..bags }, "on_failure"),
        (batch(&ids), "say where bags begin"),
    ] {
        let error = sums.shape(&given).map(|_| ()).unwrap_err();
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(rows.shape(&bags).unwrap_err().contains("offsets"));
    let error = rows.lookup(&batch(&[3, ROWS as i64])).unwrap_err();
    assert!(error.contains("missing"), "{error}");
    assert!(matches!(take_error(), Some(ModuleError::Lookup(_))));

    // Texts that mean nothing here, and tables of another shape.
    for (given, word) in [
        (String::new(), "compile the model anew"),
        (text(elsewhere, "none", ROWS, r#","of_the_future":1"#), "of_the_future"),
        (text(elsewhere, "none", ROWS + 1, ""), "1000 rows of 4"),
        (text(elsewhere, "most", ROWS, ""), "most"),
        (text(elsewhere, "none", ROWS, "").replace("\"cpu\"", "\"tpu\""), "tpu"),
        (text(elsewhere, "none", ROWS, "").replace("\"table\":\"user\"", "\"table\":\"item\""), "item"),
    ] {
        let error = find(&given).map(|_| ()).unwrap_err();
        assert!(error.contains(word), "{word}: {error}");
    }

    // A number is none that is looked up without its module.
    let mut found = null();
    // SAFETY: there is a place.
    assert_eq!(unsafe { (OPERATORS.numbered)(77, &mut found) }, 1);
    assert!(found.is_null() && message().contains("number 77"));

    // Closing frees the drive, although look-ups are held, and those fail from then on.
    assert_eq!(((OPERATORS.check)(1000), (OPERATORS.close_all)()), (0, 0));
    assert!(rows.lookup(&batch(&ids)).unwrap_err().contains("closed"));
    let device = Device::open(&there.parse().unwrap(), CreateDrive::Never).unwrap();
    let store = Store::open(&[device], &Default::default()).unwrap();
    assert_eq!(store.table("user").unwrap().rows, ROWS);
    // Who holds it is told to others.
    let busy = find(&text(elsewhere, "none", ROWS, "")).map(|_| ()).unwrap_err();
    let Some(ModuleError::Store(error)) = take_error() else { panic!("{busy}") };
    assert!(matches!(*error, StoreError::Emulated(_)), "{busy}");
    drop(store);
    let again = find(&text(elsewhere, "none", ROWS, "")).unwrap();
    assert_eq!(again.lookup(&batch(&ids)).unwrap(), rows_of(&ids));
    drop((rows, sums, again));
    assert_eq!((OPERATORS.close_all)(), 0);
}
