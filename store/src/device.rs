//! A drive before a store has opened it.

use std::sync::Arc;

use warprow_dma::Function;
use warprow_soft_controller::{DriveUri, NewDrive, SoftController, UriError};

use crate::StoreError;
use crate::attached_files::AttachedFiles;
use crate::skipped_tensor::SkippedTensor;

/// A drive to open: a namespace of an NVMe controller. From then on the store drives the function alone, until it is gone: whoever else
/// stored to its registers or doorbells could have the drive write to memory that has another use by then, or is an
/// `OutputBuffer`'s elements.
#[derive(Debug, Clone)]
pub struct Device {
    function: Arc<dyn Function>,
    namespace: u32,
    emulated: Option<Arc<Emulated>>,
    /// The files of attached tables.
    attached: Option<Arc<AttachedFiles>>,
    /// What a file that is attached holds besides.
    skipped: Arc<[SkippedTensor]>,
}

/// What is known of an emulated drive besides.
#[derive(Debug)]
pub(crate) struct Emulated {
    pub uri: DriveUri,
    pub controller: Arc<SoftController>,
    /// What the opening made.
    new: Option<NewDrive>,
}

impl Device {
    /// Namespace `namespace` (counted from 1) of the controller that `function` carries.
    pub fn new(function: Arc<dyn Function>, namespace: u32) -> Self {
        Self { function, namespace, emulated: None, attached: None, skipped: Arc::default() }
    }

    /// Another namespace of the same controller. A function can be opened but once, so this is how a store gets several of
    /// its namespaces.
    #[must_use]
    pub fn with_namespace(&self, namespace: u32) -> Self {
        Self { namespace, ..self.clone() }
    }

    /// The function.
    pub fn function(&self) -> &Arc<dyn Function> {
        &self.function
    }

    /// The namespace's identifier.
    pub fn namespace(&self) -> u32 {
        self.namespace
    }

    /// An emulated drive: formatting it needs less consent.
    pub(crate) fn emulated(uri: &DriveUri) -> Result<Self, UriError> {
        let (controller, new) = uri.open_or_make()?;
        let emulated = Some(Arc::new(Emulated { uri: uri.clone(), controller: controller.clone(), new }));
        Ok(Self { emulated, ..Self::new(controller, 1) })
    }

    /// What the opening made, if it made the emulated drive: whoever does not want the drive after all can take that back, once
    /// everything that uses the drive is dropped.
    pub fn new_drive(&self) -> Option<&NewDrive> {
        self.emulated.as_ref()?.new.as_ref()
    }

    /// Whether it was opened as an emulated drive.
    pub fn is_emulated(&self) -> bool {
        self.emulated.is_some()
    }

    /// The software controller of an emulated drive, whose faults and power cuts it takes: to see what a program does when its
    /// drive fails. `None`: the drive was not opened as an emulated one.
    ///
    /// ```
    /// # use warprow_soft_controller::{Fault, NvmOpcode, Rule};
    /// # use warprow_store::*;
    /// let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// let controller = device.soft_controller().ok_or("it is emulated")?;
    /// // The next read is never answered.
    /// let rule = controller.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ));
    /// assert_eq!(controller.faults().fired(rule), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn soft_controller(&self) -> Option<&Arc<SoftController>> {
        self.emulated.as_ref().map(|emulated| &emulated.controller)
    }

    pub(crate) fn as_emulated(&self) -> Option<&Emulated> {
        self.emulated.as_deref()
    }

    pub(crate) fn with_attached(self, files: Arc<AttachedFiles>) -> Self {
        Self { attached: Some(files), ..self }
    }

    pub(crate) fn as_attached(&self) -> Option<&Arc<AttachedFiles>> {
        self.attached.as_ref()
    }

    pub(crate) fn with_skipped(self, skipped: Vec<SkippedTensor>) -> Self {
        Self { skipped: skipped.into(), ..self }
    }

    /// The tensors of an attached file that are left out, and why; empty for any other drive.
    pub fn skipped(&self) -> &[SkippedTensor] {
        &self.skipped
    }

    /// Whether it is an emulated drive that was opened [for reading](crate::DriveAddress::for_reading) alone.
    pub fn is_read_only(&self) -> bool {
        self.emulated.as_ref().is_some_and(|emulated| emulated.uri.read_only)
    }

    /// Refuses drives that were opened for reading alone.
    pub(crate) fn check_writable(devices: &[Self]) -> Result<(), StoreError> {
        match devices.iter().find(|device| device.is_read_only()) {
            Some(device) => Err(StoreError::OpenedForReading { drive: device.name() }),
            None => Ok(()),
        }
    }

    /// The name by which errors call the drive: the function's name, and the namespace's number if that is not 1.
    pub fn name(&self) -> String {
        match self.namespace {
            1 => self.function.name().to_owned(),
            namespace => format!("{}/{namespace}", self.function.name()),
        }
    }
}
