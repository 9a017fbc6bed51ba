//! Writes a Parquet file through the store, and reads two of its columns, of some of its rows.
//!
//! `cargo run -- [DIRECTORY]`

#![expect(deprecated, reason = "a later version of parquet leaves its reader to object_store")]

use std::error::Error;
use std::sync::Arc;

use arrow_array::{Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use futures_util::TryStreamExt;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use object_store_diopter::DiopterFileSystem;
use parquet::arrow::async_reader::ParquetObjectReader;
use parquet::arrow::{AsyncArrowWriter, ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::file::properties::WriterProperties;

const BATCHES: i64 = 20;
const ROWS_OF_BATCH: i64 = 10_000;
const ROWS_OF_GROUP: usize = 50_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let directory = tempfile::tempdir_in(given)?;
    let store: Arc<dyn ObjectStore> =
        Arc::new(DiopterFileSystem::new_with_prefix(directory.path())?);
    let path = Path::from("table.parquet");
    write(&store, &path).await?;
    let size = store.head(&path).await?.size;

    let reader = ParquetObjectReader::new(Arc::clone(&store), path).with_file_size(size);
    let builder = ParquetRecordBatchStreamBuilder::new(reader).await?;
    let columns = ProjectionMask::leaves(builder.parquet_schema(), [0, 1]);
    let groups = builder.metadata().num_row_groups();
    // The second half of the row groups: their column chunks are the ranges that are read.
    let some = (groups / 2..groups).collect();
    let stream = builder.with_projection(columns).with_row_groups(some).build()?;
    let batches: Vec<RecordBatch> = stream.try_collect().await?;

    let (mut rows, mut sum) = (0, 0);
    for batch in &batches {
        let numbers = batch.column(0).as_any().downcast_ref::<Int64Array>().ok_or("numbers")?;
        rows += batch.num_rows();
        sum += numbers.values().iter().sum::<i64>();
    }
    let (start, end) = (BATCHES * ROWS_OF_BATCH / 2, BATCHES * ROWS_OF_BATCH);
    assert_eq!(i64::try_from(rows)?, end - start);
    assert_eq!(sum, (start..end).sum::<i64>());
    println!("{size} bytes, {groups} row groups; read {rows} rows of 2 columns, sum {sum}");
    Ok(())
}

async fn write(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<(), Box<dyn Error>> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("number", DataType::Int64, false),
        Field::new("root", DataType::Float64, false),
        Field::new("name", DataType::Utf8, false),
    ]));
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROWS_OF_GROUP));
    let writer = BufWriter::new(Arc::clone(store), path.clone());
    let mut writer =
        AsyncArrowWriter::try_new(writer, Arc::clone(&schema), Some(properties.build()))?;
    for batch in 0..BATCHES {
        let numbers = batch * ROWS_OF_BATCH..(batch + 1) * ROWS_OF_BATCH;
        let roots = numbers.clone().map(|number| (number as f64).sqrt());
        let names = numbers.clone().map(|number| format!("row {number}"));
        let batch = RecordBatch::try_new(
            Arc::clone(&schema),
            vec![
                Arc::new(Int64Array::from_iter_values(numbers)),
                Arc::new(Float64Array::from_iter_values(roots)),
                Arc::new(StringArray::from_iter_values(names)),
            ],
        )?;
        writer.write(&batch).await?;
    }
    writer.close().await?;
    Ok(())
}
