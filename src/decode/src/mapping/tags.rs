//! Collects the tags of a reading.

use std::borrow::Cow;

use crate::rejects::Fault;
use crate::{Context, names};

/// The tags of a reading, under their stored names. For a duplicate name the first one is kept.
#[derive(Default)]
pub(super) struct Tags<'m> {
    list: Vec<(Cow<'m, str>, Cow<'m, str>)>,
}

impl<'m> Tags<'m> {
    pub(super) fn push(
        &mut self,
        name: &str,
        text: Cow<'m, str>,
        cx: &Context<'_>,
    ) -> Result<(), Fault> {
        names::check_text(name, &text, cx.limits)?;
        let name = names::name(name, cx.limits)?;
        if self.list.iter().any(|(other, _)| *other == name) {
            return Ok(());
        }
        let max = cx.limits.tags_max.min(names::TAGS_MAX);
        if self.list.len() >= max {
            return Err(names::too_many_tags(max));
        }
        self.list.push((Cow::Owned(name.into_owned()), text));
        Ok(())
    }

    pub(super) fn list(&self) -> &[(Cow<'m, str>, Cow<'m, str>)] {
        &self.list
    }
}
