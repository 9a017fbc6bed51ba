//! The skeleton of a page: one file that a browser shows without a network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::untrusted;

/// The palette of both themes, and what all pages have.
const STYLE: &str = include_str!("../assets/page.css");
/// Elements, numbers with their units, and the switch of the theme, which run before the scripts
/// of a page.
const SCRIPT: &str = include_str!("../assets/page.js");
/// Forbids all requests. The last two are not among those of `default-src`.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src data:; base-uri 'none'; form-action 'none'";

/// A self-contained page.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// The title of its window.
    pub title: &'a str,
    /// Its style sheet, which follows the palette of all pages (`assets/page.css`).
    pub style: &'a str,
    /// The content of its body.
    pub body: Markup,
    /// The data of its scripts, as JSON: the text of the element `data`.
    pub data: &'a str,
    /// Its scripts, in the order in which they run, after that of all pages (`assets/page.js`).
    pub scripts: &'a [&'a str],
}

impl Page<'_> {
    /// Returns the text of the page. Unsafe characters are replaced, and no data ends the script
    /// element around it.
    #[must_use]
    pub fn into_text(self) -> String {
        let Page { title, style, body, data, scripts } = self;
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    link rel="icon" href="data:,";
                    title { (title) }
                    style { (PreEscaped(STYLE)) (PreEscaped(style)) }
                }
                body {
                    (body)
                    script type="application/json" id="data" {
                        (PreEscaped(data.replace('<', "\\u003c")))
                    }
                    script { (PreEscaped(SCRIPT)) }
                    @for script in scripts { script { (PreEscaped(script)) } }
                }
            }
        };
        untrusted::page(&(page.into_string() + "\n")).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup_or_end_a_script() {
        let hostile = "</script></title><b>\u{202e}";
        let data = serde_json::to_string(hostile).unwrap();
        let page = Page {
            title: hostile,
            style: "",
            body: html! { p { (hostile) } },
            data: &data,
            scripts: &["page()"],
        };
        let page = page.into_text();
        assert!(page.ends_with("</html>\n"), "{page}");
        assert_eq!(page.matches("</script>").count(), 3);
        assert!(!page.contains("<b>") && !page.contains('\u{202e}'), "{page}");
        let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
        let read: String = serde_json::from_str(data).unwrap();
        assert_eq!(read, hostile.replace('\u{202e}', "\u{fffd}"));
    }
}
