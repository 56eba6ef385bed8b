//! "Did you mean": finds the known name that is closest to a mistyped name.

/// Maximum number of edits between a name and its suggestion.
const EDITS_MAX: usize = 2;

/// The closest known name, if the number of edits is at most [`EDITS_MAX`] and less than the length of `given`.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &'a str| (strsim::osa_distance(given, name), name);
    let (edits, name) = known.into_iter().map(distance).min()?;
    (edits <= EDITS_MAX && edits < given.chars().count()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_closest_name_within_two_edits() {
        let known = ["reviewer", "writer", "tester"];
        let cases = [("reviewr", Some("reviewer")), ("wirter", Some("writer")), ("xyz", None), ("te", None)];
        for (given, expected) in cases {
            assert_eq!(nearest(given, known), expected, "{given}");
        }
    }
}
