//! Open a store, look rows up.
