//! The pages: how wide they are, where their links lead, which files they name, and what the book has.

mod book;
mod files;
mod links;
mod pages;
mod width;
