//! Records that parts of the engine keep in the log: flow runs, triggers, hooks, pressure, memory, turn overrides.
//!
//! Each has a separate kind, so that it can be read without the others. The module that owns the data defines its type
//! and converts it with [`EngineRecord`]; the entry stores it as JSON.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Body, Kind};
use crate::content::Json;

/// A body whose data belongs to one module of the engine.
pub trait EngineRecord: Sized + Into<Body> {
    /// Wrap the data of the owning module.
    fn of(data: &impl Serialize) -> Self;
    /// The data of a body of this kind; `None` for other bodies and unknown data.
    fn read<T: DeserializeOwned>(body: &Body) -> Option<T>;
}

macro_rules! engine_records {
    ($($(#[$doc:meta])* $name:ident $custom_type:literal;)*) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name {
            /// The data, as the owning module encodes it.
            pub data: Json,
        }

        impl EngineRecord for $name {
            fn of(data: &impl Serialize) -> Self {
                let value = serde_json::to_value(data).expect("engine records contain only plain data");
                Self { data: Json::from_value(&value) }
            }
            fn read<T: DeserializeOwned>(body: &Body) -> Option<T> {
                match body {
                    Body::$name(record) => serde_json::from_str(record.data.get()).ok(),
                    _ => None,
                }
            }
        })*

        /// The kind of the record that format 2 stored as `custom_info` of this type.
        pub(super) fn kind_of_custom_type(custom_type: &str) -> Option<Kind> {
            match custom_type {
                $($custom_type => Some(Kind::$name),)*
                _ => None,
            }
        }

        impl Kind {
            /// Whether format 2 stored bodies of this kind as `custom_info`.
            pub fn was_custom_info(self) -> bool {
                matches!(self, $(Kind::$name)|*)
            }
        }

        /// The custom type and the data of a record in format 2; `None` for other bodies.
        pub(super) fn as_custom_info(body: &Body) -> Option<(&'static str, &Json)> {
            match body {
                $(Body::$name(record) => Some(($custom_type, &record.data)),)*
                _ => None,
            }
        }
    };
}

engine_records! {
    /// Overrides of the session's agent for one turn. Data: [`Terms`](crate::turn::Terms).
    TurnTerms "turn_terms";
    /// Usage of model calls that no message records. Data: [`WrittenBy`](super::WrittenBy).
    UsageReported "sapwood.usage";
    /// A new pressure level. Data: [`Pressure`](crate::pressure::Pressure) and the previous level.
    PressureChanged "sapwood.pressure";
    /// An event of a flow run. Data: [`RunEvent`](crate::flow::RunEvent).
    FlowEvent "sapwood.flow";
    /// The visit that a role's session works on. Data: [`Assignment`](crate::flow::Assignment).
    FlowAssigned "sapwood.flow_post";
    /// What a hook changed, refused or did. Data: [`HookNote`](crate::port::hook::HookNote).
    HookRan "sapwood.hook";
    /// An event of a trigger. Data: [`TriggerNote`](crate::trigger::TriggerNote).
    TriggerEvent "sapwood.trigger";
    /// How far memories were extracted. Data: [`MemoryCheckpoint`](crate::memory::MemoryCheckpoint).
    MemoryLearned "sapwood.memory";
}
