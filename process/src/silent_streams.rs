//! Watches of which one after the other brings nothing.

/// Streams in a row that bring not even a bookmark, after which a list is due. After a restore of etcd the version of a
/// watch may lie in the future: the API server accepts the watch and passes on no event and no bookmark before its own
/// versions get there (`process` in `pkg/storage/cacher/cache_watcher.go` of k8s.io/apiserver).
const MOST: u32 = 2;
/// The same at an API server that has sent no bookmark yet, as one without a watch cache: there a quiet kind looks like
/// that too, and costs one list in about nine minutes. Nodes of a large fleet are not quiet.
const MOST_WITHOUT_BOOKMARKS: u32 = 8;

/// Count of the streams in a row that ended for silence.
#[derive(Debug, Default)]
pub struct SilentStreams {
    in_a_row: u32,
    /// True once the API server has sent a bookmark that ends no list.
    has_bookmarks: bool,
}

impl SilentStreams {
    /// Records a line of a stream, or a list.
    pub fn received(&mut self) {
        self.in_a_row = 0;
    }

    /// Records a bookmark that ends no list.
    pub fn bookmarked(&mut self) {
        self.has_bookmarks = true;
    }

    /// Counts a stream that fell silent. Returns true if there were too many in a row: only a list tells if the watch still
    /// follows.
    pub fn fell_silent(&mut self) -> bool {
        let most = if self.has_bookmarks {
            MOST
        } else {
            MOST_WITHOUT_BOOKMARKS
        };
        self.in_a_row = self.in_a_row.saturating_add(1);
        let needs_list = self.in_a_row >= most;
        if needs_list {
            self.in_a_row = 0;
        }
        needs_list
    }
}
