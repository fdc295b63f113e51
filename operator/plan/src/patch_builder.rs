//! JSON patches that the API server refuses once the object has changed.

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation,
    jsonptr::{PointerBuf, Token},
};
use serde_json::Value;

const VERSION_PATH: [&str; 2] = ["metadata", "resourceVersion"];

/// Builder of a patch whose operations all happen, or none.
#[derive(Debug, Default)]
pub struct PatchBuilder {
    operations: Vec<PatchOperation>,
}

impl PatchBuilder {
    /// Starts a patch that is refused unless the object still has this version.
    pub fn guarded_by(resource_version: &str) -> Self {
        let mut patch = Self::default();
        patch.test(&VERSION_PATH, resource_version);
        patch
    }

    /// Returns the version that a patch of this builder needs the object to have.
    pub fn version_of(patch: &Patch) -> Option<&str> {
        match patch.0.first() {
            Some(PatchOperation::Test(TestOperation { path, value })) if *path == pointer(&VERSION_PATH) => {
                value.as_str()
            }
            _ => None,
        }
    }

    /// Refuses the patch unless the object has this value.
    pub fn test(&mut self, path: &[&str], value: impl Into<Value>) {
        self.operations.push(PatchOperation::Test(TestOperation {
            path: pointer(path),
            value: value.into(),
        }));
    }

    /// Adds a member or an item, or replaces a member.
    pub fn add(&mut self, path: &[&str], value: impl Into<Value>) {
        self.operations.push(PatchOperation::Add(AddOperation {
            path: pointer(path),
            value: value.into(),
        }));
    }

    /// Removes a member or an item.
    pub fn remove(&mut self, path: &[&str]) {
        self.operations
            .push(PatchOperation::Remove(RemoveOperation { path: pointer(path) }));
    }

    /// Returns the patch; none if it would only test.
    pub fn build(self) -> Option<Patch> {
        let is_test = |operation: &PatchOperation| matches!(operation, PatchOperation::Test(_));
        (!self.operations.iter().all(is_test)).then_some(Patch(self.operations))
    }
}

impl From<Patch> for PatchBuilder {
    fn from(Patch(operations): Patch) -> Self {
        Self { operations }
    }
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().map(|token| Token::new(*token)))
}
