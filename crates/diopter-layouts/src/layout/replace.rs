//! Changes of an existing layout: sealing, unsealing, replacement of its objects, removal. The
//! manifest is replaced whole or not at all, whatever happens meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter_os::Errno;
use diopter_os::dir::{Dir, errno_of};

use super::create::{NewObject, NewObjects, random_uuid, suffix_of, sync};
use super::{
    Layout, Manifest, Object, ObjectAccess, ObjectKind, OpenedObject, Permissions, give, set_mode,
    system, write_beside,
};
use diopter_core::extent::ObjectIndex;

use crate::error::{LayoutError, LayoutErrorKind};

/// New, empty objects for a layout: [`commit`] makes them its objects, dropping them removes them.
///
/// [`commit`]: Replacement::commit
#[derive(Debug)]
pub struct Replacement<'a> {
    layout: &'a mut Layout,
    manifest: Manifest,
    made: NewObjects,
    objects: Vec<OpenedObject>,
    /// Permission bits of each new object, and the most that it can have.
    modes: Vec<(u32, u32)>,
}

impl Layout {
    /// Records the sizes of all file objects in the manifest, once their bytes are durable. From
    /// then on an object of another size is an error; a device's size never changes and is always
    /// recorded. Writers of the file must have finished before.
    ///
    /// # Errors
    /// Fails as [`Layout::open_objects`] does, with `Changed` and `Busy` if another process was
    /// faster, and with `NoSpace` or `System`.
    pub fn seal(&mut self) -> Result<(), LayoutError> {
        let what = "seal layout";
        self.check_change(what)?;
        let _lock = self.lock(what)?;
        let objects = self.open_objects(ObjectAccess::READ)?;
        for object in &objects {
            sync(&object.opened).map_err(system("flush object", &object.path))?;
        }
        let sizes: Vec<u64> = objects.iter().map(|object| object.size).collect();
        self.rewrite(self.manifest.sealed(Some(&sizes)), what, || ())?;
        self.directory.sync().map_err(system(what, &self.path))
    }

    /// Removes the sizes from the manifest; no object is touched.
    ///
    /// # Errors
    /// Fails with `Changed` and `Busy` if another process was faster, and with `NoSpace` or
    /// `System`.
    pub fn unseal(&mut self) -> Result<(), LayoutError> {
        let what = "unseal layout";
        self.check_change(what)?;
        let _lock = self.lock(what)?;
        self.rewrite(self.manifest.sealed(None), what, || ())?;
        self.directory.sync().map_err(system(what, &self.path))
    }

    /// Removes the manifest, then the objects. Devices remain, and so does every object that does
    /// not belong to this layout: the result names each with the reason.
    ///
    /// # Errors
    /// Fails with `NotAllowed`, `Changed` and `Busy` if another process was faster, and `System`;
    /// then no object is removed. Only after a failed flush of the directory is the manifest gone
    /// too.
    pub fn remove(self) -> Result<Vec<LayoutError>, LayoutError> {
        let what = "remove layout";
        self.check_change(what)?;
        for object in self.manifest.objects() {
            self.check_allowed(object, what)?;
        }
        let fail = system(what, &self.path);
        let _lock = self.lock(what)?;
        self.directory.remove(&self.name).map_err(&fail)?;
        // Objects without a manifest are found by their mark; a manifest without objects is broken.
        self.directory.sync().map_err(&fail)?;
        Ok(self.remove_objects(&self.manifest))
    }

    /// Creates new, empty objects in the places of the old ones, for other content: the caller
    /// fills them, then commits. Until then the layout is unchanged for all processes.
    ///
    /// # Errors
    /// Fails with `NotReplaceable` if a device is among the objects, and as
    /// [`Layout::open_objects`], seals aside, and [`Layout::create`] do.
    pub fn replace(&mut self) -> Result<Replacement<'_>, LayoutError> {
        let uuid = random_uuid().map_err(system("replace layout", &self.path))?;
        let suffix = suffix_of(uuid);
        let fail = |kind| LayoutError::new(kind, "replace layout", &self.path);
        let not_text =
            LayoutErrorKind::Name("the name is not UTF-8: no object can be named after it");
        let base = self.name.to_str().ok_or_else(|| fail(not_text))?;
        let mut objects = Vec::new();
        self.check_change("replace layout")?;
        for (index, object) in self.manifest.objects().iter().enumerate() {
            self.check_allowed(object, "replace object")?;
            let path = self.object_path(object);
            let ObjectKind::File { .. } = object.kind else {
                let kind = LayoutErrorKind::NotReplaceable;
                return Err(LayoutError::new(kind, "replace object", &path));
            };
            let name = format!("{base}.{index}.{suffix}");
            let path = Path::new(&object.path).with_file_name(name);
            let path = path.to_str().expect("made of text").to_owned();
            objects.push(Object { path, kind: ObjectKind::File { sealed_size: None } });
        }
        let stripe_size = self.manifest.striping().stripe_size();
        let manifest = Manifest::new(uuid, stripe_size, objects, None).map_err(fail)?;
        manifest.to_bytes().map_err(fail)?;
        let (mut made, home) = (NewObjects::default(), self.directory());
        let (mut objects, mut modes) = (Vec::new(), Vec::new());
        for (index, old) in self.manifest.striping().objects().zip(self.manifest.objects()) {
            let new = NewObject { manifest: &manifest, index, mode: 0o600 };
            let (object, mode) = self.make_beside(old, &mut made, (&home, new))?;
            objects.push(object);
            modes.push(mode);
        }
        Ok(Replacement { layout: self, manifest, made, objects, modes })
    }

    /// Creates one object, with the owner of the old one and for its owner alone; returns it with
    /// the old one's permission bits and the most that it can have.
    fn make_beside(
        &self,
        old: &Object,
        made: &mut NewObjects,
        (home, new): (&Path, NewObject<'_>),
    ) -> Result<(OpenedObject, (u32, u32)), LayoutError> {
        let old =
            self.open_marked_object(&self.manifest.mark(new.index), old, ObjectAccess::READ)?;
        let fail = system("create object in place of", &old.path);
        let path = self.object_path(&new.manifest.objects()[usize::from(new.index.0)]);
        let opened = made.add(&self.directory, home, new)?;
        let old = File::from(old.opened.fd).metadata().map_err(|it| fail(errno_of(&it)))?;
        let file = opened.fd.try_clone().map(File::from).map_err(|it| fail(errno_of(&it)))?;
        let kept = give(&file, old.uid(), old.gid()).map_err(&fail)?;
        Ok((OpenedObject { opened, path, size: 0 }, (old.mode() & 0o777, kept)))
    }

    /// Replaces the manifest, under the lock of [`Layout::lock`]. Calls `replaced` as soon as the
    /// name may be of the new manifest, also if an error follows.
    fn rewrite(
        &mut self,
        manifest: Manifest,
        what: &'static str,
        replaced: impl FnOnce(),
    ) -> Result<(), LayoutError> {
        if manifest == self.manifest {
            return Ok(());
        }
        let bytes = manifest.to_bytes();
        let bytes = bytes.map_err(|kind| LayoutError::new(kind, what, &self.path))?;
        let fail = system(what, &self.path);
        let permissions = Permissions::Like(&self.document);
        // A change does not mark a manifest.
        let new = (&manifest, &bytes[..], self.is_marked);
        let (temporary, file) =
            write_beside(&self.directory, &self.name, new, &permissions).map_err(&fail)?;
        if let Err(errno) = self.directory.replace(&temporary, &self.name) {
            // A server may have renamed it, and lost the reply.
            if self.directory.is_name_of(&self.name, file.as_fd()) != Ok(false) {
                replaced();
            }
            // The first error is returned; this one is dropped.
            self.directory.remove(&temporary).unwrap_or(());
            return Err(fail(errno));
        }
        replaced();
        if !self.directory.is_name_of(&self.name, file.as_fd()).map_err(&fail)? {
            // A process that may change the directory has replaced one of the two names.
            return Err(LayoutError::new(LayoutErrorKind::Changed, what, &self.path));
        }
        self.manifest = manifest;
        self.document.bytes = bytes;
        self.file = file;
        Ok(())
    }

    /// Removes the file objects that `manifest` names and that have its mark; returns the errors of
    /// the others.
    fn remove_objects(&self, manifest: &Manifest) -> Vec<LayoutError> {
        let mut left = Vec::new();
        let mut dirs: BTreeMap<PathBuf, Dir> = BTreeMap::new();
        for (index, object) in manifest.striping().objects().zip(manifest.objects()) {
            let removed = self.remove_object(manifest, index, object, &mut dirs);
            left.extend(removed.err().filter(|error| error.kind != LayoutErrorKind::Missing));
        }
        for (path, dir) in &dirs {
            left.extend(dir.sync().map_err(system("flush directory", path)).err());
        }
        left
    }

    fn remove_object(
        &self,
        manifest: &Manifest,
        index: ObjectIndex,
        object: &Object,
        dirs: &mut BTreeMap<PathBuf, Dir>,
    ) -> Result<(), LayoutError> {
        if let ObjectKind::Device(_) = object.kind {
            return Ok(());
        }
        let open = self.open_marked_object(&manifest.mark(index), object, ObjectAccess::READ)?;
        self.check_removable(&open)
            .map_err(|kind| LayoutError::new(kind, "remove object", &open.path))?;
        let fail = system("remove object", &open.path);
        let relative = Path::new(&object.path);
        let parent = relative.parent().unwrap_or(Path::new(""));
        if !dirs.contains_key(parent) {
            let opened = self.directory.open_below(parent).map_err(&fail)?;
            dirs.insert(parent.to_owned(), opened);
        }
        let dir = &dirs[parent];
        let name = relative.file_name().unwrap_or(OsStr::new(""));
        if !dir.is_name_of(name, open.opened.fd.as_fd()).map_err(&fail)? {
            return Err(fail(Errno::ESTALE));
        }
        dir.remove(name).map_err(&fail)
    }
}

impl Replacement<'_> {
    /// Returns the future content of the manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the new objects, open for reading and writing, in order.
    #[must_use]
    pub fn objects(&self) -> &[OpenedObject] {
        &self.objects
    }

    /// Takes the new objects, for the caller to fill; the second call returns none.
    #[must_use]
    pub fn take_objects(&mut self) -> Vec<OpenedObject> {
        std::mem::take(&mut self.objects)
    }

    /// Sets the permission bits of the new objects from the source of their content: on commit they
    /// have those of `mode` that the manifest has too. Without this they have those of the objects
    /// that they replace. Until then only their owner may open them.
    pub fn set_mode(&mut self, mode: u32) {
        let most = self.layout.document.mode;
        for (bits, _) in &mut self.modes {
            *bits = mode & most & 0o777;
        }
    }

    /// Makes the new objects the layout's: they and their names are flushed, then the manifest is
    /// replaced, then the old objects are removed. All bytes written to the new objects before this
    /// are durable when it returns. The result names old objects that could not be removed, with
    /// the reason. The layout is not sealed any more.
    ///
    /// # Errors
    /// Fails with `Changed` if the layout is not what it was when the new objects were created:
    /// they are removed; or if another process has replaced the manifest since: they are not.
    /// Fails with `Busy`, `NoSpace` or `System`, and leaves the layout unchanged and removes the
    /// new objects, except when what follows the replacement fails: the look at the manifest's
    /// name, or the final flush of the directory. Then the layout is the new one, a crash may bring
    /// the old one back, and both have their objects.
    pub fn commit(self) -> Result<Vec<LayoutError>, LayoutError> {
        let what = "replace layout";
        let Replacement { layout, manifest, made, objects, modes } = self;
        drop(objects);
        let _lock = layout.lock(what)?;
        let all = manifest.striping().objects().zip(manifest.objects()).zip(modes);
        for ((index, object), (bits, kept)) in all {
            let new =
                layout.open_marked_object(&manifest.mark(index), object, ObjectAccess::READ)?;
            let file = File::from(new.opened.fd);
            let done = set_mode(&file, bits & kept);
            let done = done.and_then(|()| file.sync_all().map_err(|error| errno_of(&error)));
            done.map_err(system("flush object", &new.path))?;
        }
        made.sync_dirs()?;
        let old = layout.manifest.clone();
        // A failure after the replacement leaves a manifest that names the new objects.
        layout.rewrite(manifest, what, || made.keep())?;
        layout.directory.sync().map_err(system(what, &layout.path))?;
        Ok(layout.remove_objects(&old))
    }
}
