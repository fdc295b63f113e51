//! Lines, modules, types and circles in numbers.

use std::ops::Add;

use crate::{
    circles::circles,
    product::ProductCrate,
    types::{TypeName, type_names},
    uses::Uses,
};

/// Numbers of one crate.
#[derive(Debug)]
pub struct Figures {
    /// Modules below the crate root, tests left out.
    pub modules: usize,
    /// Files with product code.
    pub product_files: usize,
    /// Lines of product code, comments and empty lines included.
    pub product_lines: usize,
    /// Lines that only tests see.
    pub test_lines: usize,
    /// Structs, enums, traits and aliases of the product.
    pub types: Vec<TypeName>,
    /// Files that use a name which a module above them defines.
    pub upward_uses: usize,
    /// Circles of files and of sibling modules.
    pub circles: Vec<String>,
    /// Places of `Result<_, String>`.
    pub string_errors: usize,
    /// Modules whose children stand in no table.
    pub missing_tables: usize,
}

/// Counts the modules, lines, types and circles of `product`.
pub fn figures(product: &ProductCrate) -> Figures {
    let mut found = Figures {
        modules: 0,
        product_files: 0,
        product_lines: 0,
        test_lines: product.tests.values().map(|text| text.lines().count()).sum(),
        types: Vec::new(),
        upward_uses: 0,
        circles: Vec::new(),
        string_errors: 0,
        missing_tables: 0,
    };
    for tree in &product.trees {
        let uses = Uses::of(tree);
        found.modules += tree.product().filter(|(_, module)| module.parent.is_some()).count();
        found.types.extend(type_names(tree));
        found.circles.extend(circles(&uses));
        found.string_errors += crate::types::string_errors(tree).len();
        found.missing_tables += crate::tables::table_problems(tree).len();
        let names = |module: usize| &tree.modules[module].names;
        found.upward_uses += uses
            .names
            .keys()
            .filter(|(from, to)| names(*from).starts_with(names(*to)))
            .count();
    }
    for (file, text) in &product.sources {
        let lines = text.lines().count();
        let product_lines = (1..=lines).filter(|line| product.is_product_line(file, *line)).count();
        found.product_files += usize::from(product_lines > 0);
        found.product_lines += product_lines;
        found.test_lines += lines - product_lines;
    }
    found
}

impl Add for Figures {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.modules += other.modules;
        self.product_files += other.product_files;
        self.product_lines += other.product_lines;
        self.test_lines += other.test_lines;
        self.types.extend(other.types);
        self.upward_uses += other.upward_uses;
        self.circles.extend(other.circles);
        self.string_errors += other.string_errors;
        self.missing_tables += other.missing_tables;
        self
    }
}
