//! Renders documents: text, Markdown, CSV, JSON, one HTML page. Measures nothing.
