//! Semaphores for projections and exports that are computed at the same time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::settings::Settings;

/// Projections of operators that run in addition to the others.
const OPERATE_PROJECTIONS_MAX: usize = 4;

pub struct ProjectionSlots {
    pub all: Arc<Semaphore>,
    pub operate: Arc<Semaphore>,
}

impl ProjectionSlots {
    pub fn new(settings: &Settings) -> Self {
        Self {
            all: Arc::new(Semaphore::new(settings.projections_max.max(1))),
            operate: Arc::new(Semaphore::new(OPERATE_PROJECTIONS_MAX)),
        }
    }
}
