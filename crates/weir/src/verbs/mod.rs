//! What each verb of the command line does.

pub mod backend;
pub mod cache;
pub mod check;
pub mod convert;
pub mod decapsulate;
pub mod demo;
pub mod explain;
pub mod flows;
pub mod limits;
pub mod maintenance;
pub mod man;
pub mod map;
pub mod proxy;
pub mod reload;
pub mod run;
pub mod status;
pub mod top;
