//! Labels with facts about the GPUs of a node, by the rules of NVIDIA's GPU feature discovery, so that node selectors written
//! for it keep working. `docs/labels.md` lists them.
//!
//! If the GPUs of a node differ, the labels describe the most frequent product; of several, the one with the lowest index.
//!
//! | module | what it does |
//! |---|---|
//! | `node_labels` | all fact labels of a node |
//! | `unfit_facts` | facts that do not fit into labels |
//! | `resource_labels` | the labels of GPUs and MIG devices: product, count, memory, sharing |
//! | `label_set` | a set of labels, and values that fit in one |

mod label_set;
mod node_labels;
mod resource_labels;
mod unfit_facts;

pub use node_labels::{NodeFactLabels, gpu_labels, is_fact_label};
pub use unfit_facts::unfit_message;
