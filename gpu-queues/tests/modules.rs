//! With a GPU: modules that stay loaded while their context is there. One test: the list of modules is the whole process's.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode_enum as CaptureMode};
use warprow_gpu_queues::{DeviceMemory, Gpu, KernelModule};

/// A kernel that stores a number, plus what the module adds, at an address.
fn code(adds: u64) -> Vec<u8> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry store(.param .u64 store_0, .param .u64 store_1)\n{{\n\
         .reg .b64 %rd<4>;\nld.param.u64 %rd1, [store_0];\nld.param.u64 %rd2, [store_1];\nadd.s64 %rd3, %rd2, {adds};\n\
         st.global.u64 [%rd1], %rd3;\nret;\n}}\n\0"
    );
    text.into_bytes()
}

fn load(gpu: &Arc<Gpu>, code: &[u8]) -> Arc<KernelModule> {
    // SAFETY: a text in PTX, which ends with a zero.
    unsafe { KernelModule::load(gpu, code) }.unwrap()
}

/// Runs the module's kernel, and returns what it stored for 40.
fn stored(gpu: &Arc<Gpu>, module: &KernelModule) -> u64 {
    let memory = DeviceMemory::new(gpu, 256).unwrap();
    let _current = gpu.enter().unwrap();
    let function = module.function(c"store").unwrap();
    assert_eq!(module.function(c"store").unwrap(), function, "looked up once");
    assert_eq!(module.function(c"none").unwrap_err(), CUresult::CUDA_ERROR_NOT_FOUND);
    let (mut address, mut number) = (memory.address(), 40u64);
    let mut parameters = [ptr::from_mut(&mut address).cast::<c_void>(), ptr::from_mut(&mut number).cast()];
    // SAFETY: the function takes two numbers of 64 bits; the memory stays until the context is done.
    let launched = unsafe {
        let (null, parameters) = (ptr::null_mut(), parameters.as_mut_ptr());
        sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null, parameters, ptr::null_mut())
    };
    assert_eq!(launched, CUresult::CUDA_SUCCESS);
    gpu.synchronize().unwrap();
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Whether the primary context of GPU 0 is there.
fn is_active() -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: CUDA is initialised; two numbers are stored.
    let code = unsafe { sys::cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    active != 0
}

#[test]
fn modules_stay_loaded_with_their_context_and_no_longer() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let codes = [code(1), code(2)];
    let modules = codes.each_ref().map(|code| load(&gpu, code));
    assert_eq!(modules.each_ref().map(|module| stored(&gpu, module)), [41, 42]);
    assert!(Arc::ptr_eq(&modules[0], &load(&Gpu::open(0).unwrap(), &codes[0])));
    let functions = {
        let _current = gpu.enter().unwrap();
        modules.each_ref().map(|module| module.function(c"store").unwrap())
    };
    drop(modules);
    for turn in 0..50 {
        let module = load(&gpu, &codes[turn % 2]);
        let _current = gpu.enter().unwrap();
        assert_eq!(module.function(c"store").unwrap(), functions[turn % 2], "turn {turn}");
    }
    assert_eq!(KernelModule::kept(), 2);
    // Threads that want the same code get one module.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn({
                let gpu = gpu.clone();
                move || load(&gpu, &code(3))
            })
        })
        .collect();
    let loaded: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(loaded.iter().all(|module| Arc::ptr_eq(module, &loaded[0])));
    assert_eq!((KernelModule::kept(), stored(&gpu, &loaded[0])), (3, 43));
    drop(loaded);

    // A capture of the strictest kind goes on while this thread, and another, load a module and its kernel.
    let mut stream = ptr::null_mut();
    let mut graph = ptr::null_mut();
    {
        let _current = gpu.enter().unwrap();
        // SAFETY: a handle is stored; the stream is destroyed below.
        unsafe {
            assert_eq!(sys::cuStreamCreate(&mut stream, 1), CUresult::CUDA_SUCCESS);
            let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            assert_eq!(sys::cuStreamBeginCapture_v2(stream, mode), CUresult::CUDA_SUCCESS);
        }
        let other = std::thread::spawn({
            let gpu = gpu.clone();
            move || {
                let module = load(&gpu, &code(4));
                let _current = gpu.enter().unwrap();
                module.function(c"store").unwrap();
            }
        });
        load(&gpu, &code(5)).function(c"store").unwrap();
        other.join().unwrap();
        // SAFETY: the stream is being captured by this thread; a handle is stored; each is destroyed once.
        unsafe {
            assert_eq!(sys::cuStreamEndCapture(stream, &mut graph), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuGraphDestroy(graph), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuStreamDestroy_v2(stream), CUresult::CUDA_SUCCESS);
        }
    }
    assert_eq!([4, 5].map(|adds| stored(&gpu, &load(&gpu, &code(adds)))), [44, 45]);
    assert_eq!(KernelModule::kept(), 5);

    // A context that nobody holds is gone, and its modules with it: the next one has its own.
    drop(gpu);
    assert!(!is_active(), "somebody else holds the context");
    let gpu = Gpu::open(0).unwrap();
    assert_eq!(stored(&gpu, &load(&gpu, &codes[0])), 41);
    assert_eq!(KernelModule::kept(), 1);

    // A context that somebody resets is gone too, also while handles of it are left.
    let module = load(&gpu, &codes[1]);
    // SAFETY: nothing of the context is used any more.
    assert_eq!(unsafe { sys::cuDevicePrimaryCtxReset_v2(0) }, CUresult::CUDA_SUCCESS);
    std::mem::forget(gpu);
    drop(module);
    let gpu = Gpu::open(0).unwrap();
    assert_eq!(stored(&gpu, &load(&gpu, &codes[1])), 42);
    assert_eq!(KernelModule::kept(), 1);
}
