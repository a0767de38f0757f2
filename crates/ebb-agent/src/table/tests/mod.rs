mod rows;
mod visit;
