//! The pages: how wide they are, where their links lead, and what the book has.

mod book;
mod links;
mod pages;
mod width;
