//! More files than are counted one by one.

use super::*;

#[test]
fn requests_on_files_after_the_first_count_together() {
    let mut script = Script::new();
    let number_of = |nth: usize| u64::try_from(nth).unwrap() + 100;
    let mut request = |nth: usize| {
        let inode = Inode { number: number_of(nth), ..inode() };
        script.at(ROOT, What::Begin(Begin { inode, is_async: false, ..begin() }));
        let (position, result) = (u64::from(LENGTH), i64::from(LENGTH));
        script.at(ROOT, What::Complete { inode, position, result });
    };
    (0..FILES_MAX + 3).for_each(&mut request);
    request(7);
    let names = [0, FILES_MAX].map(|number| script.join.name_of(number));
    assert_eq!(names.map(|name| name.display().to_string()), ["4000:0:100", OTHER_FILES]);
    let trace = script.end();
    assert_eq!(trace.files.len(), FILES_MAX + 1);
    assert_eq!(trace.files[FILES_MAX].path, OTHER_FILES);
    let of = |file: usize| trace.requests.iter().filter(|it| it.file == file).count();
    assert_eq!((of(0), of(7), of(FILES_MAX)), (1, 2, 3));
}
