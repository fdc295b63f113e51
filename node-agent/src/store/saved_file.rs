//! A state file whose last content is known, so that it is written only when it changes.

use crate::{
    runtime::blocking_thread::BlockingThread,
    store::{atomic_file, file_id::FileId},
};
use serde::Serialize;
use std::{io, path::PathBuf};

/// A state file with a content of type `T`, written as JSON.
#[derive(Debug)]
pub struct SavedFile<T> {
    path: PathBuf,
    /// The last content; none if it is unknown.
    content: Option<T>,
    /// Identity of the file that has the content; none without a file.
    id: Option<FileId>,
    /// Thread that writes, one write after the other: a late write must not undo the next.
    disk: BlockingThread,
}

impl<T: Clone + PartialEq + Serialize> SavedFile<T> {
    /// Takes a file with its content, and the identity it had before that was read; none if the content is unknown.
    pub fn new(path: PathBuf, content: Option<T>, id: Option<FileId>) -> Self {
        Self {
            path,
            content,
            id,
            disk: BlockingThread::default(),
        }
    }

    /// Returns the last content; none if it is unknown. Does not read the disk.
    pub fn content(&self) -> Option<&T> {
        self.content.as_ref()
    }

    /// Saves `content` if it differs from the file, or if somebody removed or replaced the file.
    pub async fn save(&mut self, content: T) -> io::Result<()> {
        let path = self.path.clone();
        if self.content.as_ref() == Some(&content) && FileId::of(&path) == self.id {
            return Ok(());
        }
        // The content is unknown until the write succeeds.
        let before = self.content.take();
        let text = serde_json::to_vec_pretty(&content)?;
        let replace = move || atomic_file::replace(&path, &text).map(|()| FileId::of(&path));
        match self.disk.run(replace).await.map_err(io::Error::other)? {
            Ok(id) => (self.id, self.content) = (id, Some(content)),
            Err(error) => {
                // A full disk keeps the old file.
                self.content = before.filter(|_| FileId::of(&self.path) == self.id);
                return Err(error);
            }
        }
        Ok(())
    }
}
