//! An error with its causes, as one sentence.

use std::error::Error;
use std::iter::successors;

/// An error and its causes; a cause that the error before it has told already is left out.
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    successors(error.source(), |cause| (*cause).source()).fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = |text| Some(Box::new(Link(text, None)));
        for (error, told) in [
            (Link("report", None), "report"),
            (Link("report", cause("no such thing")), "report: no such thing"),
            (Link("cannot read x: no such thing", cause("no such thing")), "cannot read x: no such thing"),
        ] {
            assert_eq!(sentence(&error), told);
        }
    }
}
